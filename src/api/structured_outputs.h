// What a request says its answer must follow: response_format (OpenAI's) or structured_outputs (vLLM's). Inside of
// request parsing only.
#pragma once

#include <optional>

#include "api/json.h"
#include "text/grammar.h"

namespace quire::api {

// Nothing if the answer is free. Whether the grammar compiles is left to text::GrammarCompiler.
std::optional<text::GrammarText> read_grammar(ObjectReader& in);

}  // namespace quire::api
