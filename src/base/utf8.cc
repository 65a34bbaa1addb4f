#include "base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace quire {
namespace {

// The length of the well-formed sequence at the start of `text` (not empty), or 0.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;   // longer than needed
  if (lead == 0xed && byte(1) >= 0xa0) return 0;  // a surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;   // longer than needed
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
  return length;
}

// Marks and embeddings of right-to-left text: U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
bool turns_direction(std::string_view sequence) {
  if (sequence.size() != 3 || sequence[0] != '\xe2') return false;
  const auto second = static_cast<uint8_t>(sequence[1]), third = static_cast<uint8_t>(sequence[2]);
  if (second == 0x80) return third == 0x8e || third == 0x8f || (third >= 0xaa && third <= 0xae);
  return second == 0x81 && third >= 0xa6 && third <= 0xa9;
}

// Appends the first character of `text` (not empty), or its bytes as \xNN if it cannot be shown or `escape` says so.
// Returns its length.
size_t append_shown(std::string_view text, bool escape, std::string& out) {
  const size_t length = sequence_length(text);
  const auto lead = static_cast<uint8_t>(text[0]);
  const std::string_view character = text.substr(0, length == 0 ? 1 : length);
  const bool shown = length != 0 && !(length == 1 && (lead < 0x20 || lead == 0x7f)) && !turns_direction(character);
  if (shown && !escape) {
    out += character;
    return character.size();
  }
  for (const char c : character) {
    const auto byte = static_cast<uint8_t>(c);
    out += "\\x";
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return character.size();
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 100;
  std::string out = "\"";
  while (!text.empty()) {
    if (out.size() > kMost) return out + "...\"";
    const bool quoted = text[0] == '"' || text[0] == '\\';
    text.remove_prefix(append_shown(text, quoted, out));
  }
  return out + '"';
}

std::string one_line(std::string_view message) {
  constexpr size_t kFirst = 1500, kLast = 400;
  std::string out;
  while (!message.empty()) {
    if (out.size() > kFirst && message.size() > kLast) {
      message.remove_prefix(message.size() - kLast);
      while (!message.empty() && (static_cast<uint8_t>(message[0]) & 0xc0) == 0x80) message.remove_prefix(1);
      out += " [...] ";
      while (!message.empty()) message.remove_prefix(append_shown(message, false, out));
      break;
    }
    message.remove_prefix(append_shown(message, false, out));
  }
  return out;
}

}  // namespace quire
