// What a request says its answer must follow: a format, in the place where each API has it, or structured_outputs
// (vLLM's). Inside of request parsing only. Whether it compiles is left to text::GrammarCompiler.
#pragma once

#include <optional>
#include <string>

#include "api/json.h"
#include "text/grammar.h"

namespace quire::api {

// Nothing if the answer is free. `format` is what the endpoint has read.
std::optional<text::GrammarText> read_grammar(ObjectReader& in, std::optional<text::GrammarText> format);

// Of completions and chats.
std::optional<text::GrammarText> read_response_format(ObjectReader& in);
// The member `format` of a part of the body, {"type", "schema"}, as /v1/responses and /v1/messages have it; `place` is
// the member's in the body.
std::optional<text::GrammarText> read_flat_format(ObjectReader& part, const std::string& place);

}  // namespace quire::api
