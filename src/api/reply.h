// What an answer becomes on the wire: one body, or the events of a stream.
//
// Generation feeds a Reply with what the engine answers and knows nothing of its shape; each endpoint has its own. All
// of a stream comes from one Reply, in the order begin(), piece()..., and end() or failure(); what it returns is the
// text of the events. body() is alone. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/choice.h"
#include "api/error_reply.h"
#include "api/parsers/output_parser.h"
#include "quire/request.h"
#include "text/tokenizer.h"

namespace quire::api {

// What every reply to a request says of it.
struct ReplyHead {
  std::string request_id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
  std::string call_key;                        // what ids of calls are made of
  const text::Tokenizer* tokenizer = nullptr;  // null: tokens are named by their ids
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens
};

// An answer, or what came of it since the last piece.
struct AnswerPiece {
  int index = 0;
  bool first = true;                         // nothing of this answer went before
  std::span<const OutputPiece> pieces = {};  // of a completion: content alone
  std::span<const TokenId> tokens = {};
  std::optional<std::span<const PositionLogprobs>> logprobs = {};  // one a token
  std::string_view finish_reason = {};                             // as Choice has it; empty: goes on
  StopReason stop_reason = {};
  bool called = false;  // a tool, here or before
  std::span<const TokenId> prompt = {};
  // Of the prompt's positions from the second on; absent: not asked for.
  std::optional<std::span<const PositionLogprobs>> prompt_logprobs = {};
  bool echo = false;            // the prompt goes before it
  std::string_view quire = {};  // JSON of the reply's object of that name, once the answer has ended; empty: none
};

class Reply {
 public:
  virtual ~Reply() = default;

  virtual std::string body(std::span<const AnswerPiece> answers, const Usage& usage) const = 0;

  // `usage` is what is known by then. `quire` is the first answer's.
  virtual std::string begin(const Usage& usage) = 0;
  virtual std::string piece(const AnswerPiece& piece, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage, std::string_view quire) = 0;
  virtual std::string failure(const ApiError& error) = 0;
};

// Appends one event of a stream whose events have names.
void append_event(std::string& out, std::string_view name, std::string_view data);

// An id of 9 letters and digits, since Mistral's templates take no other.
std::string call_id(std::string_view call_key, int answer, int call);

}  // namespace quire::api
