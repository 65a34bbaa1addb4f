#include "api/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "api/json_writer.h"
#include "base/utf8.h"
#include "text/grammar.h"

namespace quire::api {
namespace {

constexpr size_t kMostTools = 1024;
constexpr size_t kLongestName = 256;  // bytes

// The parameters that are strings, and the schema itself.
void read_parameters(ObjectReader& function, std::string_view field, ToolSpec& tool) {
  const auto schema = function.any(field);
  if (!schema) return;
  if (!schema->is_object())
    return function.fail(field, fmt::format("{} must be an object, not {}", field, shown(*schema)));
  tool.parameters = json_text(*schema);
  simdjson::dom::object properties;
  if ((*schema)["properties"].get(properties)) return;
  for (const auto [name, property] : properties) {
    std::string_view type;
    if (!property["type"].get(type) && type == "string") tool.strings.emplace(name);
  }
}

// `place` is the function's in the body.
ToolSpec read_function(ObjectReader& function, const std::string& place, std::string_view schema) {
  ToolSpec tool;
  tool.name = function.string("name").value_or("");
  if (!function.failure() && (tool.name.empty() || tool.name.size() > kLongestName))
    function.fail("name", fmt::format("{}name must have 1 to {} bytes", place, kLongestName));
  read_parameters(function, schema, tool);
  return tool;
}

void check_type(ObjectReader& tool, const std::string& place, std::string_view known) {
  const auto type = tool.string("type");
  if (type && *type != known) {
    tool.fail("type", fmt::format("{}type may be {}, not {}", place, in_quotes(known), in_quotes(*type)),
              ErrorKind::kUnsupported);
  }
}

ToolSpec read_tool(ObjectReader& in, Json value, const std::string& place) {
  ToolSpec tool;
  ObjectReader outer(value, place);
  check_type(outer, place, "function");
  const auto function = outer.any("function");
  if (!function) outer.fail("function", fmt::format("{}function is missing", place));
  if (outer.failure()) {
    in.fail("tools", outer.failure()->message, outer.failure()->kind);
    return tool;
  }
  const std::string inner_place = place + "function.";
  ObjectReader inner(*function, inner_place);
  tool = read_function(inner, inner_place, "parameters");
  if (inner.failure()) in.fail("tools", inner.failure()->message, inner.failure()->kind);
  return tool;
}

ToolSpec read_flat_tool(ObjectReader& in, Json value, const std::string& place, const FlatTools& shape,
                        JsonWriter& chat_tools) {
  ObjectReader reader(value, place);
  check_type(reader, place, shape.type);
  ToolSpec tool = read_function(reader, place, shape.schema);
  const auto description = reader.string("description");
  if (reader.failure()) in.fail("tools", reader.failure()->message, reader.failure()->kind);
  chat_tools.begin_object().key("type").value("function").key("function").begin_object();
  chat_tools.key("name").value(tool.name);
  if (description) chat_tools.key("description").value(*description);
  chat_tools.key("parameters").raw(tool.parameters).end_object().end_object();
  return tool;
}

// `read` takes an item and its place.
template <class Read>
std::vector<ToolSpec> read_list(ObjectReader& in, const Read& read) {
  std::vector<ToolSpec> tools;
  const auto value = in.any("tools");
  if (!value) return tools;
  if (!value->is_array()) in.fail("tools", fmt::format("tools must be a list, not {}", shown(*value)));
  if (in.failure()) return tools;
  const simdjson::dom::array list(*value);
  if (list.size() > kMostTools) in.fail("tools", fmt::format("tools may hold at most {} tools", kMostTools));
  for (const Json item : list) {
    if (in.failure()) return tools;
    ToolSpec tool = read(item, fmt::format("tools[{}].", tools.size()));
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
  }
  check_tool_choice(in, use, "required");
}

// Nothing where the model decides.
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

}  // namespace

std::vector<ToolSpec> read_flat_tools(ObjectReader& in, const FlatTools& shape, std::string& chat_tools) {
  std::string list;
  JsonWriter json(list);
  json.begin_array();
  auto tools =
      read_list(in, [&](Json item, const std::string& place) { return read_flat_tool(in, item, place, shape, json); });
  json.end_array();
  if (!tools.empty()) chat_tools = std::move(list);
  return tools;
}

void check_tool_choice(ObjectReader& in, const ToolUse& use, std::string_view word) {
  if (use.choice == ToolUse::Choice::kNamed &&
      std::ranges::find(use.tools, use.named, &ToolSpec::name) == use.tools.end())
    in.fail("tool_choice", fmt::format("tool_choice names {}, which is not among tools", in_quotes(use.named)));
  if (use.choice == ToolUse::Choice::kRequired && use.tools.empty())
    in.fail("tool_choice", fmt::format("tool_choice is {}, but there are no tools", in_quotes(word)));
}

ToolUse read_tools(ObjectReader& in) {
  in.unsupported("functions");
  in.unsupported("function_call");
  ToolUse use;
  use.tools = read_list(in, [&](Json item, const std::string& place) { return read_tool(in, item, place); });
  if (!in.failure()) read_choice(in, use);
  use.parallel = in.boolean("parallel_tool_calls").value_or(true);
  return use;
}

void force_calls(ObjectReader& in, const ToolUse& use, GenerationOptions& options) {
  if (in.failure()) return;
  auto grammar = forced_calls(use);
  if (!grammar) return;
  if (options.grammar) {
    in.fail("tool_choice",
            fmt::format("tool_choice asks for a call, and {} for something else", options.grammar->param));
  }
  options.grammar = std::move(grammar);
}

}  // namespace quire::api
