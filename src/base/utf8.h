// Checks on text from outside, and how such text is shown in a message.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// Well-formed UTF-8 by RFC 3629: shortest forms, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

// `text` in double quotes on one line, at most about 100 bytes: control characters, quotes, backslashes and malformed
// bytes as \xNN, the rest cut off with "...".
std::string in_quotes(std::string_view text);

// A message that may hold text from outside, as one line of at most about 2,000 bytes: control characters, what turns
// the direction of writing, and malformed bytes as \xNN, what is too long without its middle.
std::string one_line(std::string_view message);

}  // namespace quire
