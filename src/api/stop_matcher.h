// Finds stop strings in text that comes in pieces, and holds back what may become one.
//
// The text ends where a stop string is first complete; if several are complete at that place, the longest counts. What
// was passed out never holds a part of a match, and never falls short of what is certain: exactly the longest end of
// the text that begins some stop string is held back. So the result depends on the text alone, not on its pieces.
// Pieces are whole UTF-8 characters, and so is what comes out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::api {

class StopMatcher {
 public:
  // Stop strings are not empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Adds a piece to the text and returns what may be passed out. With `armed` false no match may end in this piece,
  // though it may begin there. After a match nothing more is taken in.
  std::string feed(std::string_view piece, bool armed = true);
  // The end of the text: what was held back.
  std::string flush();

  // The stop string that ended the text, or null. It is not part of what was passed out.
  const std::string* match() const { return match_ ? &patterns_[*match_].text : nullptr; }

 private:
  // Knuth, Morris and Pratt: state is the length of the longest prefix that the text ends with.
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;
    size_t state = 0;
    bool advance(char c);
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace quire::api
