// One answer in the making: turns the engine's updates, in token ids, into text that ends at a stop string.
//
// What comes out depends on the tokens alone, not on how updates cut them: text ends where a stop string is first
// complete, and tokens end with the one that completed it. One thread at a time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/request.h"
#include "api/stop_matcher.h"
#include "text/detokenizer.h"

namespace quire::api {

// What ended an answer beyond its finish reason: a stop string, or one of stop_token_ids.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

class Choice {
 public:
  // What an update added.
  struct Delta {
    std::string text = {};
    std::vector<TokenId> tokens = {};
    std::vector<size_t> text_ends = {};  // for each token: bytes of `text` up to it
    std::vector<PositionLogprobs> logprobs = {};
  };

  // `tokenizer` may be null: then there is no text. `end_tokens` are the model's own; `shown` are special tokens that
  // are part of the text in any case.
  Choice(const GenerationOptions& options, const text::Tokenizer* tokenizer, std::span<const TokenId> end_tokens,
         std::vector<TokenId> shown = {});

  // The update's tokens stay its own.
  Delta accept(Update&& update);

  // "stop", "length", "abort" or "error" once it has ended, empty before.
  std::string_view finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }
  bool finished() const { return !finish_reason_.empty(); }
  // It ended at a stop string, of which the engine knows nothing: its request is to be cancelled.
  bool ended_by_text() const { return ended_by_text_; }
  int tokens() const { return tokens_; }

 private:
  void add_text(std::string& out, std::string_view piece);
  void end(const Update& update, Delta& delta);

  std::optional<text::DetokenizeStream> detokenizer_;
  StopMatcher matcher_;
  std::vector<TokenId> end_tokens_;
  int min_tokens_;
  bool keep_stop_;
  int tokens_ = 0;
  std::string_view finish_reason_;
  StopReason stop_reason_;
  bool ended_by_text_ = false;
};

}  // namespace quire::api
