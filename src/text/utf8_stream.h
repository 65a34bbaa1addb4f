// A Utf8Stream turns bytes that arrive in any pieces into whole UTF-8 characters.
//
// What is passed out is always well-formed. An incomplete character at the end is held back (at most three bytes) until
// the next bytes decide about it; every maximal malformed part becomes one U+FFFD, as Unicode recommends. So the text
// depends on the bytes alone, not on how they were cut. One thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace quire::text {

class Utf8Stream {
 public:
  // Appends to `out` what `bytes` complete.
  void push(std::string_view bytes, std::string& out);
  // The end of the text: an incomplete character becomes U+FFFD. The stream can be used again.
  void flush(std::string& out);
  size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;
};

}  // namespace quire::text
