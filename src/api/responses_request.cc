// /v1/responses: a chat whose turns come as items, read into what the chat template takes.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "api/chat_messages.h"
#include "api/json_writer.h"
#include "api/request_common.h"
#include "api/structured_outputs.h"
#include "api/tools.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

// The text of `value`, a string or a list of parts; `part` is the type that those of an answer have.
std::string read_text(ObjectReader& in, const char* name, const std::string& place, std::string_view part) {
  const auto value = in.any(name);
  if (!value) return {};
  if (value->is_string()) return std::string(std::string_view(*value));
  if (!value->is_array())
    in.fail(name, fmt::format("{}{} must be a string or a list of parts, not {}", place, name, shown(*value)));
  if (in.failure()) return {};
  std::string text;
  size_t index = 0;
  for (const Json item : simdjson::dom::array(*value)) {
    const std::string part_place = fmt::format("{}{}[{}].", place, name, index++);
    ObjectReader reader(item, part_place);
    const auto type = reader.string("type");
    if (type != "input_text" && type != "text" && type != part) {
      reader.fail("type",
                  fmt::format("{}type is {}, but this model takes text only", part_place, in_quotes(type.value_or(""))),
                  ErrorKind::kUnsupported);
    }
    const auto piece = reader.string("text");
    if (!piece) reader.fail("text", fmt::format("{}text is missing", part_place));
    in.adopt_failure(reader);
    if (in.failure()) return {};
    if (index > 1) text += '\n';
    text += *piece;
  }
  return text;
}

void read_message(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  const std::string role = in.string("role").value_or("");
  if (!in.any("content")) in.fail("content", fmt::format("{}content is missing", place));
  const std::string text = read_text(in, "content", place, "output_text");
  if (role == "user") {
    messages.begin(role);
  } else if (role == "assistant") {
    messages.go_on(role);
  } else if (role == "system" || role == "developer") {
    messages.go_on("system");  // templates know no other name
  } else {
    in.fail("role", fmt::format("{}role may be user, assistant, system or developer, not {}", place, in_quotes(role)));
  }
  if (!in.failure()) messages.add_text(text);
}

void read_call(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  const auto id = in.string("call_id");
  const auto name = in.string("name");
  const auto arguments = in.string("arguments");
  if (!id) in.fail("call_id", fmt::format("{}call_id is missing", place));
  if (!name) in.fail("name", fmt::format("{}name is missing", place));
  auto json = arguments_json(arguments.value_or(""));
  if (!json) in.fail("arguments", fmt::format("{}arguments: {}", place, json.error().message));
  if (in.failure()) return;
  messages.go_on("assistant");
  messages.add_call(*id, *name, *json);
}

void read_call_output(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  const auto id = in.string("call_id");
  if (!id) in.fail("call_id", fmt::format("{}call_id is missing", place));
  if (!in.any("output")) in.fail("output", fmt::format("{}output is missing", place));
  const std::string text = read_text(in, "output", place, "output_text");
  if (!in.failure()) messages.tool_result(*id, text);
}

// The reasoning itself, or else its summary.
void read_reasoning(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  std::string text = read_text(in, "content", place, "reasoning_text");
  const std::string summary = read_text(in, "summary", place, "summary_text");
  if (text.empty()) text = summary;
  if (in.failure() || text.empty()) return;
  messages.go_on("assistant");
  messages.add_reasoning(text);
}

void read_item(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  const std::string type = in.string("type").value_or("message");
  if (type == "message") return read_message(in, place, messages);
  if (type == "function_call") return read_call(in, place, messages);
  if (type == "function_call_output") return read_call_output(in, place, messages);
  if (type == "reasoning") return read_reasoning(in, place, messages);
  in.fail("type",
          fmt::format("{}type may be message, function_call, function_call_output or reasoning, not {}", place,
                      in_quotes(type)),
          ErrorKind::kUnsupported);
}

void read_input(ObjectReader& in, ChatMessages& messages) {
  const auto value = in.any("input");
  if (!value) in.fail("input", "input is missing");
  if (in.failure()) return;
  if (value->is_string()) {
    messages.begin("user");
    return messages.add_text(std::string_view(*value));
  }
  if (!value->is_array())
    return in.fail("input", fmt::format("input must be a string or a list of items, not {}", shown(*value)));
  const simdjson::dom::array items(*value);
  if (items.size() == 0) return in.fail("input", "input must not be empty");
  if (items.size() > kMaxMessages)
    return in.fail("input", fmt::format("input may hold at most {} items", kMaxMessages));
  size_t index = 0;
  for (const Json item : items) {
    const std::string place = fmt::format("input[{}].", index++);
    ObjectReader reader(item, place);
    read_item(reader, place, messages);
    if (reader.failure()) return in.fail("input", reader.failure()->message, reader.failure()->kind);
  }
}

ToolUse read_response_tools(ObjectReader& in, std::string& chat_tools) {
  ToolUse use;
  use.tools = read_flat_tools(in, {.type = "function", .schema = "parameters"}, chat_tools);
  use.parallel = in.boolean("parallel_tool_calls").value_or(true);
  const auto value = in.any("tool_choice");
  if (!value) return use;
  const std::string_view word = value->is_string() ? std::string_view(*value) : std::string_view();
  std::string_view type, name;
  if (word == "none") {
    use.choice = ToolUse::Choice::kNone;
  } else if (word == "required") {
    use.choice = ToolUse::Choice::kRequired;
  } else if (value->is_object() && !(*value)["type"].get(type) && type == "function" && !(*value)["name"].get(name)) {
    use.choice = ToolUse::Choice::kNamed;
    use.named = name;
  } else if (word != "auto") {
    in.fail("tool_choice", fmt::format("tool_choice may be \"auto\", \"none\", \"required\" or {{\"type\": "
                                       "\"function\", \"name\": ...}}, not {}",
                                       shown(*value)));
  }
  check_tool_choice(in, use, word);
  return use;
}

std::string read_reasoning_options(ObjectReader& in) {
  const auto value = in.any("reasoning");
  if (!value) return {};
  ObjectReader reader(*value, "reasoning.");
  std::string effort = read_effort(reader, "effort");
  reader.string("summary");  // the reasoning is given as it is
  in.adopt_failure(reader);
  return effort;
}

std::optional<text::GrammarText> read_text_options(ObjectReader& in) {
  const auto value = in.any("text");
  if (!value) return std::nullopt;
  ObjectReader reader(*value, "text.");
  auto grammar = read_flat_format(reader, "text.format");
  const auto verbosity = reader.string("verbosity");
  if (verbosity && *verbosity != "medium")
    reader.fail("verbosity", "text.verbosity is not supported by this server", ErrorKind::kUnsupported);
  in.adopt_failure(reader);
  return grammar;
}

// What cannot be had, and what changes nothing here.
void read_rest(ObjectReader& in) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    const auto value = in.any(name);
    if (value)
      in.fail(name, fmt::format("{} is not supported: this server keeps no responses; send all items as input", name),
              ErrorKind::kUnsupported);
  }
  for (const char* name : {"background", "background_options", "prompt", "context_management", "max_tool_calls",
                           "top_logprobs", "moderation"})
    in.unsupported(name);
  for (const std::string& wanted : in.strings("include", 64)) {
    // The reasoning comes in the clear.
    if (wanted == "reasoning.encrypted_content") continue;
    in.fail("include", fmt::format("include of {} is not supported by this server", in_quotes(wanted)),
            ErrorKind::kUnsupported);
  }
  if (const auto truncation = in.string("truncation"); truncation && *truncation != "disabled")
    in.fail("truncation", "truncation may be \"disabled\" here: input that is too long is an error",
            ErrorKind::kUnsupported);
  if (const auto metadata = in.any("metadata"); metadata && !metadata->is_object())
    in.fail("metadata", fmt::format("metadata must be an object, not {}", shown(*metadata)));
  in.boolean("store");
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
                           "prompt_cache_retention", "service_tier", "stream_options"})
    in.any(name);
}

// What the reply's object repeats, as members.
std::string echo_of(ObjectReader& in, const ResponsesRequest& request) {
  std::string members;
  JsonWriter json(members);
  const auto repeat = [&](const char* name, std::string_view otherwise) {
    const auto value = in.any(name);
    json.key(name).raw(value ? json_text(*value) : otherwise);
  };
  const GenerationOptions& options = request.chat.options;
  repeat("instructions", "null");
  repeat("max_output_tokens", "null");
  repeat("metadata", "{}");
  repeat("parallel_tool_calls", "true");
  repeat("reasoning", R"({"effort":null,"summary":null})");
  json.key("temperature").value(options.sampling.temperature).key("top_p").value(options.sampling.top_p);
  repeat("text", R"({"format":{"type":"text"}})");
  repeat("tool_choice", R"("auto")");
  repeat("tools", "[]");
  json.key("background").value(false).key("previous_response_id").null();
  json.key("store").value(false).key("truncation").value("disabled");
  return members;
}

}  // namespace

Result<Parsed<ResponsesRequest>> parse_responses(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  ResponsesRequest request{.chat = {.options = read_shared_options(in, limits)}};
  GenerationOptions& options = request.chat.options;
  ChatPrompt& prompt = request.chat.prompt;
  prompt.field = "input";
  ChatMessages messages;
  if (const auto instructions = in.string("instructions")) {
    messages.begin("system");
    messages.add_text(*instructions);
  }
  read_input(in, messages);
  prompt.messages = messages.finish();
  request.chat.tool_use = read_response_tools(in, prompt.tools);
  if (request.chat.tool_use.choice == ToolUse::Choice::kNone) prompt.tools.clear();
  prompt.reasoning_effort = read_reasoning_options(in);
  options.grammar = read_grammar(in, read_text_options(in));
  force_calls(in, request.chat.tool_use, options);
  read_max_tokens(in, "max_output_tokens", limits, options);
  read_rest(in);
  if (in.failure()) return std::unexpected(*in.failure());
  request.echo = echo_of(in, request);
  return Parsed<ResponsesRequest>{std::move(request), in.unread()};
}

}  // namespace quire::api
