#include "text/utf8_stream.h"

#include <cstdint>

namespace quire::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Character {
  size_t length = 0;  // bytes looked at: of the character, or of the malformed part
  bool malformed = false;
  bool incomplete = false;  // well-formed so far, and the text ends here
};

// The first character of `text`, which is not empty.
Character first_character(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.length = 1};
  if (lead < 0xC2 || lead > 0xF4) return {.length = 1, .malformed = true};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.length = i, .incomplete = true};
    // The second byte excludes longer forms than needed, surrogates, and what is beyond U+10FFFF.
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return {.length = i, .malformed = true};
  }
  return {.length = length};
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  if (!held_.empty()) {
    held_ += bytes;
    bytes = held_;
  }
  size_t at = 0;
  while (at < bytes.size()) {
    const Character next = first_character(bytes.substr(at));
    if (next.incomplete) break;
    if (next.malformed) {
      out += kReplacement;
    } else {
      out += bytes.substr(at, next.length);
    }
    at += next.length;
  }
  held_ = std::string(bytes.substr(at));
}

void Utf8Stream::flush(std::string& out) {
  if (!held_.empty()) out += kReplacement;
  held_.clear();
}

}  // namespace quire::text
