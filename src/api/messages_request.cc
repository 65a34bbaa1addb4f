// /v1/messages: a chat as Anthropic spells it, read into what the chat template takes.
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

// Calls `read` with a reader, the type and the place of each block of `value`, which is a list.
template <class Read>
void for_blocks(ObjectReader& in, Json value, const std::string& place, const Read& read) {
  size_t index = 0;
  for (const Json item : simdjson::dom::array(value)) {
    const std::string block_place = fmt::format("{}[{}].", place, index++);
    ObjectReader block(item, block_place);
    read(block, block.string("type").value_or(""), block_place);
    in.adopt_failure(block);
    if (in.failure()) return;
  }
}

std::string required(ObjectReader& block, const char* name, const std::string& place) {
  auto value = block.string(name);
  if (!value) block.fail(name, fmt::format("{}{} is missing", place, name));
  return value.value_or("");
}

void refuse_block(ObjectReader& block, const std::string& place, const std::string& type, const char* known) {
  block.fail("type", fmt::format("{}type may be {} here, not {}", place, known, in_quotes(type)),
             ErrorKind::kUnsupported);
}

// The text of a member that is a string or a list of text blocks; `place` is the member's.
std::optional<std::string> read_text(ObjectReader& in, const char* name, const std::string& place) {
  const auto value = in.any(name);
  if (!value) return std::nullopt;
  if (value->is_string()) return std::string(std::string_view(*value));
  if (!value->is_array())
    in.fail(name, fmt::format("{} must be a string or a list of text blocks, not {}", place, shown(*value)));
  if (in.failure()) return std::nullopt;
  std::optional<std::string> text;
  for_blocks(in, *value, place, [&](ObjectReader& block, const std::string& type, const std::string& at) {
    if (type != "text") return refuse_block(block, at, type, "text");
    const std::string piece = required(block, "text", at);
    if (text) {
      *text += "\n" + piece;
    } else {
      text = piece;
    }
  });
  return text;
}

void read_user_block(ObjectReader& block, const std::string& type, const std::string& place, ChatMessages& messages) {
  if (type == "text") {
    messages.go_on("user");
    return messages.add_text(required(block, "text", place));
  }
  if (type != "tool_result") return refuse_block(block, place, type, "text or tool_result");
  const std::string id = required(block, "tool_use_id", place);
  block.boolean("is_error");  // what went wrong is in the content
  messages.tool_result(id, read_text(block, "content", place + "content").value_or(""));
}

void read_assistant_block(ObjectReader& block, const std::string& type, const std::string& place,
                          ChatMessages& messages) {
  messages.go_on("assistant");
  if (type == "text") return messages.add_text(required(block, "text", place));
  if (type == "thinking") return messages.add_reasoning(required(block, "thinking", place));
  if (type != "tool_use") return refuse_block(block, place, type, "text, thinking or tool_use");
  const std::string id = required(block, "id", place), name = required(block, "name", place);
  const auto input = block.any("input");
  if (input && !input->is_object())
    block.fail("input", fmt::format("{}input must be an object, not {}", place, shown(*input)));
  messages.add_call(id, name, input ? json_text(*input) : "{}");
}

void read_message(ObjectReader& in, const std::string& place, ChatMessages& messages) {
  const std::string role = required(in, "role", place);
  if (role != "user" && role != "assistant" && role != "system")
    in.fail("role", fmt::format("{}role may be user, assistant or system, not {}", place, in_quotes(role)));
  const auto content = in.any("content");
  if (!content) in.fail("content", fmt::format("{}content is missing", place));
  if (in.failure()) return;
  const std::string content_place = place + "content";
  if (content->is_string() || role == "system") {
    messages.go_on(role);
    return messages.add_text(read_text(in, "content", content_place).value_or(""));
  }
  if (!content->is_array()) {
    return in.fail("content",
                   fmt::format("{} must be a string or a list of blocks, not {}", content_place, shown(*content)));
  }
  if (simdjson::dom::array(*content).size() == 0) messages.go_on(role);
  for_blocks(in, *content, content_place, [&](ObjectReader& block, const std::string& type, const std::string& at) {
    role == "user" ? read_user_block(block, type, at, messages) : read_assistant_block(block, type, at, messages);
  });
}

void read_list(ObjectReader& in, ChatMessages& messages) {
  const auto value = in.any("messages");
  if (!value) in.fail("messages", "messages is missing");
  if (in.failure()) return;
  if (!value->is_array()) return in.fail("messages", fmt::format("messages must be a list, not {}", shown(*value)));
  const simdjson::dom::array list(*value);
  if (list.size() == 0) return in.fail("messages", "messages must not be empty");
  if (list.size() > kMaxMessages)
    return in.fail("messages", fmt::format("messages may hold at most {} messages", kMaxMessages));
  size_t index = 0;
  for (const Json item : list) {
    const std::string place = fmt::format("messages[{}].", index++);
    ObjectReader reader(item, place);
    read_message(reader, place, messages);
    if (reader.failure()) return in.fail("messages", reader.failure()->message, reader.failure()->kind);
  }
}

// A last message of the assistant's is the beginning of the answer.
void read_prefill(ObjectReader& in, const ChatMessages& messages, ChatPrompt& prompt) {
  if (in.failure() || messages.last_role() != "assistant") return;
  if (!messages.last_is_text())
    in.fail("messages", "a last message of the assistant's is continued, so it may hold text alone");
  prompt.add_generation_prompt = false;
  prompt.continue_final_message = true;
  prompt.final_content = messages.last_text();
}

ToolUse read_message_tools(ObjectReader& in, std::string& chat_tools) {
  using Choice = ToolUse::Choice;
  ToolUse use;
  use.tools = read_flat_tools(in, {.type = "custom", .schema = "input_schema"}, chat_tools);
  const auto value = in.any("tool_choice");
  if (!value) return use;
  ObjectReader reader(*value, "tool_choice.");
  const std::string type = required(reader, "type", "tool_choice.");
  use.parallel = !reader.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "any") use.choice = Choice::kRequired;
  if (type == "none") use.choice = Choice::kNone;
  if (type == "tool") {
    use.choice = Choice::kNamed;
    use.named = required(reader, "name", "tool_choice.");
  }
  if (use.choice == Choice::kAuto && type != "auto")
    reader.fail("type", fmt::format("tool_choice.type may be auto, any, tool or none, not {}", in_quotes(type)));
  in.adopt_failure(reader);
  check_tool_choice(in, use, type);
  return use;
}

// Templates of models that can think or not ask one of these variables.
std::string thinking_variables(bool thinks) {
  return thinks ? R"({"enable_thinking":true,"thinking":true})" : R"({"enable_thinking":false,"thinking":false})";
}

void read_thinking(ObjectReader& in, ChatRequest& request) {
  const auto value = in.any("thinking");
  if (!value) return;
  ObjectReader reader(*value, "thinking.");
  const std::string type = required(reader, "type", "thinking.");
  const auto budget = reader.integer("budget_tokens", 1, std::numeric_limits<int>::max());
  if (type == "enabled" && !budget) reader.fail("budget_tokens", "thinking.budget_tokens is missing");
  const auto display = reader.string("display");
  if (display && *display != "summarized" && *display != "omitted")
    reader.fail("display", fmt::format("thinking.display may be summarized or omitted, not {}", in_quotes(*display)));
  const bool thinks = type == "enabled" || type == "adaptive";
  if (!thinks && type != "disabled") {
    reader.fail("type", fmt::format("thinking.type may be enabled, adaptive or disabled, not {}", in_quotes(type)),
                ErrorKind::kUnsupported);
  }
  in.adopt_failure(reader);
  request.prompt.kwargs = thinking_variables(thinks);
  request.include_reasoning = thinks && display != "omitted";
}

std::optional<text::GrammarText> read_output_config(ObjectReader& in, ChatPrompt& prompt) {
  const auto value = in.any("output_config");
  if (!value) return std::nullopt;
  ObjectReader reader(*value, "output_config.");
  prompt.reasoning_effort = read_effort(reader, "effort");
  auto format = read_flat_format(reader, "output_config.format");
  in.adopt_failure(reader);
  return format;
}

// What cannot be had, and what changes nothing here.
void read_rest(ObjectReader& in) {
  for (const char* name : {"container", "mcp_servers", "context_management", "output_format", "diagnostics"})
    in.unsupported(name);
  if (const auto metadata = in.any("metadata"); metadata && !metadata->is_object())
    in.fail("metadata", fmt::format("metadata must be an object, not {}", shown(*metadata)));
  for (const char* name : {"cache_control", "service_tier", "user_profile_id", "workspace_id"}) in.any(name);
}

// All but max_tokens.
ChatRequest read_request(ObjectReader& in, const ParseLimits& limits) {
  in.number("temperature", 0, 1);  // Anthropic's range
  ChatRequest request{.options = read_shared_options(in, limits)};
  read_stops(in, "stop_sequences", request.options);
  ChatPrompt& prompt = request.prompt;
  ChatMessages messages;
  if (const auto system = read_text(in, "system", "system")) {
    messages.begin("system");
    messages.add_text(*system);
  }
  read_list(in, messages);
  read_prefill(in, messages, prompt);
  prompt.messages = messages.finish();
  request.tool_use = read_message_tools(in, prompt.tools);
  if (request.tool_use.choice == ToolUse::Choice::kNone) prompt.tools.clear();
  read_thinking(in, request);
  request.options.grammar = read_grammar(in, read_output_config(in, prompt));
  force_calls(in, request.tool_use, request.options);
  read_rest(in);
  return request;
}

}  // namespace

Result<Parsed<ChatRequest>> parse_messages(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  ChatRequest request = read_request(in, limits);
  read_max_tokens(in, "max_tokens", limits, request.options);
  if (!request.options.max_tokens) in.fail("max_tokens", "max_tokens is missing");
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<ChatRequest>{std::move(request), in.unread()};
}

Result<Parsed<ChatRequest>> parse_count_tokens(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  ChatRequest request = read_request(in, limits);
  in.any("max_tokens");
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<ChatRequest>{std::move(request), in.unread()};
}

}  // namespace quire::api
