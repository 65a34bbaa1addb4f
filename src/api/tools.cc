#include "api/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/json_writer.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

constexpr size_t kMostTools = 1024;
constexpr size_t kLongestName = 256;  // bytes

// The parameters that are strings, and the schema itself.
void read_parameters(ObjectReader& function, ToolSpec& tool) {
  const auto schema = function.any("parameters");
  if (!schema) return;
  if (!schema->is_object())
    return function.fail("parameters", fmt::format("parameters must be an object, not {}", shown(*schema)));
  tool.parameters = json_text(*schema);
  simdjson::dom::object properties;
  if ((*schema)["properties"].get(properties)) return;
  for (const auto [name, property] : properties) {
    std::string_view type;
    if (!property["type"].get(type) && type == "string") tool.strings.emplace(name);
  }
}

ToolSpec read_tool(ObjectReader& in, Json value, size_t index) {
  const std::string place = fmt::format("tools[{}].", index);
  ToolSpec tool;
  ObjectReader outer(value, place);
  const auto type = outer.string("type");
  if (type.value_or("function") != "function")
    outer.fail("type", fmt::format("{}type may be \"function\", not {}", place, in_quotes(*type)),
               ErrorKind::kUnsupported);
  const auto function = outer.any("function");
  if (!function) outer.fail("function", fmt::format("{}function is missing", place));
  if (outer.failure()) {
    in.fail("tools", outer.failure()->message, outer.failure()->kind);
    return tool;
  }
  ObjectReader inner(*function, place + "function.");
  tool.name = inner.string("name").value_or("");
  if (!inner.failure() && (tool.name.empty() || tool.name.size() > kLongestName))
    inner.fail("name", fmt::format("{}function.name must have 1 to {} bytes", place, kLongestName));
  read_parameters(inner, tool);
  if (inner.failure()) in.fail("tools", inner.failure()->message, inner.failure()->kind);
  return tool;
}

std::vector<ToolSpec> read_list(ObjectReader& in) {
  std::vector<ToolSpec> tools;
  const auto value = in.any("tools");
  if (!value) return tools;
  if (!value->is_array()) in.fail("tools", fmt::format("tools must be a list, not {}", shown(*value)));
  if (in.failure()) return tools;
  const simdjson::dom::array list(*value);
  if (list.size() > kMostTools) in.fail("tools", fmt::format("tools may hold at most {} tools", kMostTools));
  for (const Json item : list) {
    if (in.failure()) return tools;
    ToolSpec tool = read_tool(in, item, tools.size());
    if (std::ranges::find(tools, tool.name, &ToolSpec::name) != tools.end())
      in.fail("tools", fmt::format("tools holds {} twice", in_quotes(tool.name)));
    tools.push_back(std::move(tool));
  }
  return tools;
}

void read_choice(ObjectReader& in, ToolUse& use) {
  constexpr std::string_view kName = "tool_choice";
  const auto wrong = [&](Json value) {
    in.fail(kName, fmt::format("tool_choice may be \"auto\", \"none\", \"required\" or {{\"type\": \"function\", "
                               "\"function\": {{\"name\": ...}}}}, not {}",
                               shown(value)));
  };
  const auto value = in.any(kName);
  if (!value) return;
  if (value->is_string()) {
    const std::string_view word(*value);
    if (word == "none") use.choice = ToolUse::Choice::kNone;
    if (word == "required") use.choice = ToolUse::Choice::kRequired;
    if (word != "none" && word != "required" && word != "auto") return wrong(*value);
  } else {
    std::string_view type, name;
    Json function;
    if (!value->is_object() || (*value)["type"].get(type) || type != "function" || (*value)["function"].get(function) ||
        !function.is_object() || function["name"].get(name))
      return wrong(*value);
    use.choice = ToolUse::Choice::kNamed;
    use.named = name;
    if (std::ranges::find(use.tools, name, &ToolSpec::name) == use.tools.end())
      return in.fail(kName, fmt::format("tool_choice names {}, which is not among tools", in_quotes(name)));
  }
  if (use.choice == ToolUse::Choice::kRequired && use.tools.empty())
    in.fail(kName, "tool_choice is \"required\", but there are no tools");
}

}  // namespace

ToolUse read_tools(ObjectReader& in) {
  in.unsupported("functions");
  in.unsupported("function_call");
  ToolUse use{.tools = read_list(in)};
  if (!in.failure()) read_choice(in, use);
  use.parallel = in.boolean("parallel_tool_calls").value_or(true);
  return use;
}

std::optional<text::GrammarText> forced_calls(const ToolUse& use) {
  using text::GrammarKind;
  if (use.choice == ToolUse::Choice::kNamed) {
    const auto tool = std::ranges::find(use.tools, use.named, &ToolSpec::name);
    return text::GrammarText{GrammarKind::kJsonSchema, tool->parameters, "tools"};
  }
  if (use.choice != ToolUse::Choice::kRequired) return std::nullopt;
  std::string lark = use.parallel ? "start: \"[\" call (\", \" call)* \"]\"\n" : "start: \"[\" call \"]\"\n";
  std::string any, rules;
  for (size_t i = 0; i < use.tools.size(); ++i) {
    std::string begin = "{\"name\": ", quoted;
    append_json_string(begin, use.tools[i].name);
    append_json_string(quoted, begin + ", \"parameters\": ");
    any += fmt::format("{}call_{}", i == 0 ? "" : " | ", i);
    rules += fmt::format("call_{0}: {1} arguments_{0} \"}}\"\narguments_{0}: %json {2}\n", i, quoted,
                         use.tools[i].parameters);
  }
  return text::GrammarText{GrammarKind::kLark, lark + "call: " + any + "\n" + rules, "tools"};
}

}  // namespace quire::api
