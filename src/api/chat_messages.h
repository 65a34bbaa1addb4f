// Writes the messages of a chat as its template takes them, for requests that cut a conversation otherwise: what an
// assistant reasoned, said and called in one turn becomes one message. Inside of request parsing only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "api/json_writer.h"
#include "quire/error.h"

namespace quire::api {

inline constexpr size_t kMaxMessages = 4096;  // that a request may hold

// What a client sends as a call's arguments, a string that holds JSON, as the JSON that templates take.
Result<std::string> arguments_json(std::string_view text);

class ChatMessages {
 public:
  ChatMessages() { json_.begin_array(); }
  ChatMessages(const ChatMessages&) = delete;
  ChatMessages& operator=(const ChatMessages&) = delete;

  // What is added next goes into a message of this role: a message of its own, or the last one if it has the same role.
  void begin(std::string_view role);
  void go_on(std::string_view role);
  // Texts are joined by line breaks.
  void add_text(std::string_view text);
  void add_reasoning(std::string_view text);
  void add_call(std::string_view id, std::string_view name, std::string_view arguments);  // JSON
  // A message of its own.
  void tool_result(std::string_view id, std::string_view text);

  bool empty() const { return list_.size() == 1 && role_.empty(); }
  std::string_view last_role() const { return role_; }
  const std::string& last_text() const { return text_; }
  bool last_is_text() const { return reasoning_.empty() && calls_.empty(); }
  // The list, JSON; nothing is added after it.
  std::string finish();

 private:
  void write_last();

  std::string list_;
  JsonWriter json_{list_};
  // The last message; no role: there is none.
  std::string role_;
  std::string text_;
  std::string reasoning_;
  std::string calls_;  // JSON, with commas between them
};

}  // namespace quire::api
