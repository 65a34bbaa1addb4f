// What a chat says of the tools that its answer may, or must, call. Inside of request parsing only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/json.h"
#include "api/request.h"
#include "text/grammar.h"

namespace quire::api {

// Reads tools, tool_choice and parallel_tool_calls.
ToolUse read_tools(ObjectReader& in);

// What an answer must be where a call is wanted in any case: the arguments of the named tool, or a list of calls, as
// {"name": ..., "parameters": {...}}. Nothing where the model decides.
std::optional<text::GrammarText> forced_calls(const ToolUse& use);

}  // namespace quire::api
