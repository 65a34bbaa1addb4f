// How log-probabilities look in answers: one form for completions, one for chats, one for prompts.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "api/json_writer.h"
#include "quire/request.h"
#include "text/tokenizer.h"

namespace quire::api {

// What a token is called in an answer: its text, or "token_id:7".
class TokenNames {
 public:
  TokenNames(const text::Tokenizer* tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}

  std::string of(TokenId token) const;
  // The bytes it adds to the text; empty without a tokenizer.
  std::string_view bytes(TokenId token) const { return tokenizer_ != nullptr ? tokenizer_->piece(token) : ""; }
  // Characters of its name, for text offsets.
  size_t characters(TokenId token) const;
  bool has_text() const { return tokenizer_ != nullptr; }

 private:
  const text::Tokenizer* tokenizer_;
  bool as_ids_;
};

// An echoed prompt: its tokens, and the log-probabilities from the second one on.
struct PromptLogprobs {
  std::span<const TokenId> tokens = {};
  std::span<const PositionLogprobs> logprobs = {};
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: the token itself and the most likely ones by name.
void write_completion_logprobs(JsonWriter& json, const TokenNames& names, const PromptLogprobs& echo,
                               std::span<const PositionLogprobs> positions, size_t text_offset);
// {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}]}
void write_chat_logprobs(JsonWriter& json, const TokenNames& names, std::span<const PositionLogprobs> positions);
// [null, {"7": {"logprob", "rank", "decoded_token"}, ...}, ...]: null for the first token, of which nothing is known.
void write_position_maps(JsonWriter& json, const TokenNames& names, std::span<const PositionLogprobs> positions);

}  // namespace quire::api
