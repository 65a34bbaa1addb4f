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
    const auto lead = static_cast<uint8_t>(text[0]);
    const size_t length = sequence_length(text);
    const bool plain = length > 1 || (length == 1 && lead >= 0x20 && lead != 0x7f && lead != '"' && lead != '\\');
    if (plain) {
      out += text.substr(0, length);
      text.remove_prefix(length);
    } else {
      out += "\\x";
      out += "0123456789abcdef"[lead >> 4];
      out += "0123456789abcdef"[lead & 15];
      text.remove_prefix(1);
    }
  }
  return out + '"';
}

}  // namespace quire
