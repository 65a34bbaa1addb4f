// The bodies of answers: completions and chats, whole or as the chunks of a stream, in OpenAI's shape with vLLM's
// additions. Pure functions from values to JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/choice.h"
#include "api/parsers/output_parser.h"
#include "quire/request.h"
#include "text/tokenizer.h"

namespace quire::api {

// What is the same in all chunks of an answer.
struct ReplyHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
  bool chat = false;
  const text::Tokenizer* tokenizer = nullptr;  // null: tokens are named by their ids
  bool tokens_as_ids = false;
  bool return_token_ids = false;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// An answer, or a piece of one.
struct AnswerPiece {
  int index = 0;
  bool first = true;  // nothing of this answer went before
  std::string_view text = {};
  std::span<const TokenId> tokens = {};
  std::optional<std::span<const PositionLogprobs>> logprobs = {};  // one a token
  size_t text_offset = 0;               // characters that went before, for a completion's logprobs
  std::string_view finish_reason = {};  // empty: goes on
  StopReason stop_reason = {};
  std::span<const TokenId> prompt = {};
  // Of the prompt's positions from the second on; absent: not asked for.
  std::optional<std::span<const PositionLogprobs>> prompt_logprobs = {};
  std::string_view quire = {};  // JSON of the reply's object of that name; empty: not asked for, or not the last chunk
  // Instead of text, where the answer's format is known.
  bool parsed = false;
  std::span<const OutputPiece> pieces = {};
  std::string_view call_key = {};  // what ids of calls are made of
  bool echo = false;               // the prompt's tokens go before those of the answer in a completion's logprobs
};

// One chunk of a stream; with `usage` if it is given, with "usage": null if only `say_usage`.
std::string chunk_json(const ReplyHead& head, const AnswerPiece& piece, const std::optional<Usage>& usage,
                       bool say_usage);
// The last chunk of a stream that was asked for usage: no choices. `quire` as in AnswerPiece.
std::string usage_chunk_json(const ReplyHead& head, const Usage& usage, std::string_view quire);
std::string body_json(const ReplyHead& head, const std::vector<AnswerPiece>& answers, const Usage& usage);

// Characters that these tokens add to text_offset.
size_t offset_of(const ReplyHead& head, std::span<const TokenId> tokens);

// One event of a server-sent stream.
std::string sse_event(std::string_view data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace quire::api
