// One line a message on standard error: time, level, text, and the message's fields as name=value; or all of it as a
// JSON object. The level comes from QUIRE_LOG (debug, info, warn, error). Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace quire::log {

// A name, a letter first, and what it stands for. Neither a string's text nor the name is held.
struct Field {
  std::string_view name;
  std::variant<std::string_view, int64_t, double, bool> value;
};

void debug(std::string_view message);
void info(std::string_view message);
void info(std::string_view message, std::span<const Field> fields);
void warn(std::string_view message);
void error(std::string_view message);

// From now on messages below warn are left out, unless QUIRE_LOG asks for them.
void leave_out_info();

enum class Format { kText, kJson };
// Of the messages that follow.
void set_format(Format format);

}  // namespace quire::log
