// Parsers of calls as model families write them; `tools` are those of the request.
#pragma once

#include <memory>
#include <vector>

#include "api/parsers/output_parser.h"

namespace quire::api {

// <tool_call>{"name": ..., "arguments": {...}}</tool_call>
std::unique_ptr<OutputParser> make_hermes_parser();
// [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...} for each call.
std::unique_ptr<OutputParser> make_mistral_parser();
// An answer that is {"name": ..., "parameters": {...}}, or several of them with ; or in a list, behind <|python_tag|>
// or not. Only tools that there are: other JSON is an answer.
std::unique_ptr<OutputParser> make_bare_json_parser(std::vector<ToolSpec> tools);
// <tool_call>name, then <arg_key>key</arg_key><arg_value>value</arg_value> for each argument, </tool_call>
std::unique_ptr<OutputParser> make_glm45_parser(std::vector<ToolSpec> tools);
// <tool_call><function=name>, then <parameter=key>value</parameter> for each argument, </function></tool_call>
std::unique_ptr<OutputParser> make_qwen3_coder_parser(std::vector<ToolSpec> tools);

// The reasoning between two markers at an answer's start; what follows is for `next`. `opened`: the prompt ends with
// the first marker.
std::unique_ptr<OutputParser> make_reasoning_parser(std::string_view begin, std::string_view end, bool opened,
                                                    std::unique_ptr<OutputParser> next);

// Harmony, gpt-oss's format: messages in channels, some of them to a function. Without `calls` these are content.
std::unique_ptr<OutputParser> make_harmony_parser(bool calls);

// All of it is content.
std::unique_ptr<OutputParser> make_plain_parser();

}  // namespace quire::api
