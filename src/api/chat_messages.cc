#include "api/chat_messages.h"

#include <fmt/format.h>

#include <utility>

#include "api/json.h"

namespace quire::api {
namespace {

constexpr size_t kMaxArgumentsDepth = kMaxJsonDepth - 8;  // they end up inside of the messages, some levels deep

void add_line(std::string& text, std::string_view more) {
  if (!text.empty()) text += '\n';
  text += more;
}

}  // namespace

Result<std::string> arguments_json(std::string_view text) {
  const auto parsed = JsonDocument::parse(text.empty() ? "{}" : text, kMaxArgumentsDepth);
  if (!parsed) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("a call's arguments must hold JSON: {}", parsed.error().message));
  }
  return json_text(parsed->root());
}

void ChatMessages::begin(std::string_view role) {
  write_last();
  role_ = role;
}

void ChatMessages::go_on(std::string_view role) {
  if (role_ != role) begin(role);
}

void ChatMessages::add_text(std::string_view text) { add_line(text_, text); }
void ChatMessages::add_reasoning(std::string_view text) { add_line(reasoning_, text); }

void ChatMessages::add_call(std::string_view id, std::string_view name, std::string_view arguments) {
  if (!calls_.empty()) calls_ += ',';
  JsonWriter json(calls_);
  json.begin_object().key("id").value(id).key("type").value("function").key("function").begin_object();
  json.key("name").value(name).key("arguments").raw(arguments).end_object().end_object();
}

void ChatMessages::tool_result(std::string_view id, std::string_view text) {
  write_last();
  json_.begin_object().key("role").value("tool").key("tool_call_id").value(id).key("content").value(text).end_object();
}

void ChatMessages::write_last() {
  if (role_.empty()) return;
  json_.begin_object().key("role").value(role_).key("content").value(text_);
  if (!reasoning_.empty()) json_.key("reasoning_content").value(reasoning_);
  if (!calls_.empty()) json_.key("tool_calls").begin_array().raw(calls_).end_array();
  json_.end_object();
  role_.clear();
  text_.clear();
  reasoning_.clear();
  calls_.clear();
}

std::string ChatMessages::finish() {
  write_last();
  json_.end_array();
  return std::move(list_);
}

}  // namespace quire::api
