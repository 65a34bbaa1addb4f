#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "api/chat_messages.h"
#include "api/json_writer.h"
#include "api/request_common.h"
#include "api/tools.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

// The text of a content that is a list of parts; parts are joined by line breaks, as vLLM does for text templates.
Result<std::string> join_parts(Json parts, const std::string& place) {
  std::string text;
  size_t index = 0;
  for (const Json part : simdjson::dom::array(parts)) {
    ObjectReader in(part, fmt::format("{}content[{}].", place, index));
    const auto type = in.string("type");
    if (type == "text" || type == "input_text") {
      const auto piece = in.string("text");
      if (!piece) in.fail("text", fmt::format("{}content[{}] has no text", place, index));
      if (index > 0) text += '\n';
      text += piece.value_or("");
    } else {
      in.fail("type",
              fmt::format("{}content[{}] is of type {}, but this model takes text only", place, index,
                          in_quotes(type.value_or(""))),
              ErrorKind::kUnsupported);
    }
    if (in.failure()) return std::unexpected(*in.failure());
    ++index;
  }
  return text;
}

// Templates expect a call's arguments as an object, clients send them as a string that holds one.
void write_tool_calls(JsonWriter& out, ObjectReader& in, Json calls) {
  if (!calls.is_array()) return in.fail("messages", fmt::format("tool_calls must be a list, not {}", shown(calls)));
  out.begin_array();
  for (const Json call : simdjson::dom::array(calls)) {
    Json function;
    std::string_view arguments;
    if (!call.is_object() || call["function"].get(function) || !function.is_object()) {
      return in.fail("messages", "every tool call must be an object with a function");
    }
    out.begin_object();
    for (const auto [key, value] : simdjson::dom::object(call)) {
      if (key != "function") out.key(key).raw(json_text(value));
    }
    out.key("function").begin_object();
    for (const auto [key, value] : simdjson::dom::object(function)) {
      out.key(key);
      if (key != "arguments" || value.get(arguments)) {
        out.raw(json_text(value));
        continue;
      }
      const auto parsed = arguments_json(arguments);
      if (!parsed) return in.fail("messages", parsed.error().message);
      out.raw(*parsed);
    }
    out.end_object().end_object();
  }
  out.end_array();
}

// Writes one message and returns its content.
std::string write_message(JsonWriter& out, Json message, size_t index, ObjectReader& request) {
  const std::string place = fmt::format("messages[{}].", index);
  ObjectReader in(message, place);
  const auto role = in.string("role");
  if (!role) in.fail("role", fmt::format("messages[{}] has no role", index));
  const auto content = in.any("content");
  const auto calls = in.any("tool_calls");
  if (!content && !calls && role != "assistant") in.fail("content", fmt::format("messages[{}] has no content", index));
  if (content && !content->is_string() && !content->is_array()) {
    in.fail("content", fmt::format("{}content must be a string or a list of parts, not {}", place, shown(*content)));
  }
  Result<std::string> text;
  if (!in.failure() && content && content->is_array()) text = join_parts(*content, place);
  if (!in.failure() && content && content->is_string()) text = std::string(std::string_view(*content));
  if (!text) in.fail("content", text.error().message, text.error().kind);
  if (in.failure()) {
    request.fail("messages", in.failure()->message, in.failure()->kind);
    return {};
  }

  out.begin_object();
  for (const auto [key, value] : simdjson::dom::object(message)) {
    if (value.is_null()) continue;
    out.key(key);
    if (key == "content") {
      out.value(*text);
    } else if (key == "tool_calls") {
      write_tool_calls(out, request, value);
    } else {
      out.raw(json_text(value));
    }
  }
  if (!content) out.key("content").value("");
  out.end_object();
  return *text;
}

// Fills in `prompt`'s messages and final content.
void read_messages(ObjectReader& in, ChatPrompt& prompt) {
  const auto value = in.any("messages");
  if (!value) in.fail("messages", "messages is missing");
  if (in.failure()) return;
  if (!value->is_array()) in.fail("messages", fmt::format("messages must be a list, not {}", shown(*value)));
  if (in.failure()) return;
  const simdjson::dom::array list(*value);
  if (list.size() == 0) in.fail("messages", "messages must not be empty");
  if (list.size() > kMaxMessages)
    in.fail("messages", fmt::format("messages may hold at most {} messages", kMaxMessages));
  JsonWriter out(prompt.messages);
  out.begin_array();
  size_t index = 0;
  for (const Json message : list) {
    if (in.failure()) return;
    prompt.final_content = write_message(out, message, index++, in);
  }
  out.end_array();
}

std::string read_list(ObjectReader& in, std::string_view name) {
  const auto value = in.any(name);
  if (!value) return {};
  if (!value->is_array()) in.fail(name, fmt::format("{} must be a list, not {}", name, shown(*value)));
  return json_text(*value);
}

std::string read_template_kwargs(ObjectReader& in) {
  constexpr std::string_view kName = "chat_template_kwargs";
  const auto value = in.any(kName);
  if (!value) return {};
  if (!value->is_object()) in.fail(kName, fmt::format("{} must be an object, not {}", kName, shown(*value)));
  for (const char* taken : {"messages", "tools", "documents", "add_generation_prompt"}) {
    if ((*value)[taken].error() == simdjson::SUCCESS)
      in.fail(kName, fmt::format("{} may not hold {}: it is a field of its own", kName, taken));
  }
  return json_text(*value);
}

void read_chat_logprobs(ObjectReader& in, SamplingParams& sampling) {
  const bool wanted = in.boolean("logprobs").value_or(false);
  const auto top = in.integer("top_logprobs", 0, kMaxLogprobs);
  if (top && *top > 0 && !wanted) in.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  if (wanted) sampling.logprobs = static_cast<int>(top.value_or(0));
}

}  // namespace

std::string read_effort(ObjectReader& in, const char* name) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const auto effort = in.string(name);
  if (!effort) return {};
  if (std::ranges::find(kEfforts, *effort) == kEfforts.end())
    in.fail(name, fmt::format("{} may be {}, not {}", name, fmt::join(kEfforts, ", "), in_quotes(*effort)));
  return *effort;
}

ChatPrompt read_chat_prompt(ObjectReader& in, ToolUse& use) {
  ChatPrompt prompt;
  read_messages(in, prompt);
  use = read_tools(in);
  if (!in.failure() && !use.tools.empty() && use.choice != ToolUse::Choice::kNone)
    prompt.tools = json_text(*in.any("tools"));
  prompt.documents = read_list(in, "documents");
  prompt.kwargs = read_template_kwargs(in);
  prompt.reasoning_effort = read_effort(in, "reasoning_effort");
  prompt.continue_final_message = in.boolean("continue_final_message").value_or(false);
  const auto generate = in.boolean("add_generation_prompt");
  if (generate.value_or(false) && prompt.continue_final_message) {
    in.fail("continue_final_message", "continue_final_message and add_generation_prompt exclude each other");
  }
  prompt.add_generation_prompt = generate.value_or(!prompt.continue_final_message);
  prompt.add_special_tokens = in.boolean("add_special_tokens").value_or(false);
  return prompt;
}

Result<Parsed<ChatRequest>> parse_chat(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  ChatRequest request{.options = read_options(in, limits)};
  request.prompt = read_chat_prompt(in, request.tool_use);
  request.include_reasoning = in.boolean("include_reasoning").value_or(true);
  GenerationOptions& options = request.options;
  force_calls(in, request.tool_use, options);
  read_chat_logprobs(in, options.sampling);
  // The older name is read in any case: a wrong value is an error.
  in.integer("max_tokens", 1, std::numeric_limits<int>::max());
  read_max_tokens(in, in.any("max_completion_tokens") ? "max_completion_tokens" : "max_tokens", limits, options);
  in.unsupported("audio");
  in.unsupported("echo");
  in.unsupported("chat_template");
  if (options.n > limits.max_choices) in.fail("n", fmt::format("n may be at most {}", limits.max_choices));
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<ChatRequest>{std::move(request), in.unread()};
}

Result<Parsed<TokenizeRequest>> parse_tokenize(std::string_view body) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  TokenizeRequest request{.model = in.string("model")};
  request.text = in.string("prompt");
  if (in.any("messages")) {
    ToolUse use;
    request.chat = read_chat_prompt(in, use);
    if (request.text) in.fail("prompt", "give either prompt or messages");
  } else if (!request.text) {
    in.fail("prompt", "prompt is missing");
  }
  request.add_special_tokens = in.boolean("add_special_tokens").value_or(!request.chat);
  request.return_token_strs = in.boolean("return_token_strs").value_or(false);
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<TokenizeRequest>{std::move(request), in.unread()};
}

Result<Parsed<DetokenizeRequest>> parse_detokenize(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  DetokenizeRequest request{.model = in.string("model")};
  const bool given = in.any("tokens").has_value();
  request.tokens = in.token_ids("tokens", limits.vocab_size);
  if (!given) in.fail("tokens", "tokens is missing");
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<DetokenizeRequest>{std::move(request), in.unread()};
}

}  // namespace quire::api
