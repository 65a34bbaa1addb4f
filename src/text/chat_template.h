// A ChatTemplate renders the messages of a chat into the text that a model was trained on.
//
// Jinja as transformers runs it: trim_blocks, lstrip_blocks, loop controls, Python's string methods, tojson without
// HTML escapes, raise_exception, strftime_now. A template from a hostile file can neither read anything nor work
// without end. Immutable; any number of threads may render at the same time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "quire/error.h"

struct quire_text_template;

namespace quire::text {

struct ChatTemplateSource {
  std::string_view text;
  std::string_view tool_use = {};  // used in place of `text` when there are tools; empty if the model has none
  // What the template knows as bos_token, eos_token and the like.
  std::map<std::string, std::string> special_tokens = {};
};

class ChatTemplate {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  // kCorruptFile says what cannot be parsed and where. strftime_now prints the local time of `clock`.
  static Result<ChatTemplate> compile(const ChatTemplateSource& source, Clock clock = std::chrono::system_clock::now);

  // `messages` is JSON: a list. `options` is a JSON object: "add_generation_prompt" (default false), "tools",
  // "documents", and any other name the template may use. kInvalidRequest if the template refuses the messages or fails
  // on them.
  Result<std::string> render(std::string_view messages, std::string_view options = "{}") const;
  // All that it was compiled from.
  const std::string& source() const { return source_; }

 private:
  struct Free {
    void operator()(quire_text_template* chat_template) const;
  };
  using Handle = std::unique_ptr<quire_text_template, Free>;
  ChatTemplate(Handle handle, Clock clock, std::string source)
      : handle_(std::move(handle)), clock_(std::move(clock)), source_(std::move(source)) {}

  Handle handle_;
  Clock clock_;
  std::string source_;
};

}  // namespace quire::text
