// What a chat says of the tools that its answer may, or must, call. Inside of request parsing only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/json.h"
#include "api/request.h"

namespace quire::api {

// Reads tools, tool_choice and parallel_tool_calls.
ToolUse read_tools(ObjectReader& in);

// A list of tools that are their function: {"type", "name", "description", SCHEMA}.
struct FlatTools {
  std::string_view type;    // of a function; also without one
  std::string_view schema;  // the member that says what it takes
};
// Reads `tools`, and appends to `chat_tools` the list as chat templates take it; nothing if there are none.
std::vector<ToolSpec> read_flat_tools(ObjectReader& in, const FlatTools& shape, std::string& chat_tools);
// Checks a choice that tool_choice spells `word`: there must be tools, and the named one must be among them.
void check_tool_choice(ObjectReader& in, const ToolUse& use, std::string_view word);

// Where a call is wanted in any case, the answer must be it: the arguments of the named tool, or a list of calls, as
// {"name": ..., "parameters": {...}}. An error if the options ask for something else.
void force_calls(ObjectReader& in, const ToolUse& use, GenerationOptions& options);

}  // namespace quire::api
