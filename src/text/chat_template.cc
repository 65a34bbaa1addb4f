#include "text/chat_template.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "text/boundary.h"

namespace quire::text {

namespace {

quire_text_time local_time(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return {.year = parts.tm_year + 1900,
          .month = parts.tm_mon + 1,
          .day = parts.tm_mday,
          .hour = parts.tm_hour,
          .minute = parts.tm_min,
          .second = parts.tm_sec};
}

}  // namespace

void ChatTemplate::Free::operator()(quire_text_template* chat_template) const {
  quire_text_template_free(chat_template);
}

Result<ChatTemplate> ChatTemplate::compile(const ChatTemplateSource& source, Clock clock) {
  const std::string special_tokens =
      nlohmann::json(source.special_tokens).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  quire_text_template* raw = nullptr;
  quire_text_bytes message{};
  const int32_t status =
      quire_text_template_compile(borrow(source.text), borrow(source.tool_use), borrow(special_tokens), &raw, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  return ChatTemplate(Handle(raw), std::move(clock), std::string(source.text) + std::string(source.tool_use));
}

Result<std::string> ChatTemplate::render(std::string_view messages, std::string_view options) const {
  quire_text_bytes text{};
  quire_text_bytes message{};
  const int32_t status = quire_text_template_render(handle_.get(), borrow(messages), borrow(options),
                                                    local_time(clock_()), &text, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  return take(text);
}

}  // namespace quire::text
