#include "api/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quire::api {
namespace {

struct Outcome {
  std::string text;
  std::string stop;
  bool operator==(const Outcome&) const = default;
};

// What the header promises, over the whole text at once: `armed_from` is the first byte a match may end at.
Outcome by_force(const std::string& text, const std::vector<std::string>& stops, size_t armed_from) {
  for (size_t end = 1; end <= text.size(); ++end) {
    if (end <= armed_from) continue;
    std::string longest;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          stop.size() > longest.size()) {
        longest = stop;
      }
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

size_t longest_begun(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST(StopMatcher, CutsBeforeTheStop) {
  StopMatcher matcher({"\n\n", "END"});
  EXPECT_EQ(matcher.feed("Hello E"), "Hello ");
  EXPECT_EQ(matcher.feed("N"), "");
  EXPECT_EQ(matcher.feed("d of EN"), "ENd of ");
  EXPECT_EQ(matcher.match(), nullptr);
  EXPECT_EQ(matcher.feed("D and more"), "");
  ASSERT_NE(matcher.match(), nullptr);
  EXPECT_EQ(*matcher.match(), "END");
  EXPECT_EQ(matcher.feed("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, FlushesWhatOnlyBeganAStop) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.feed("a sto"), "a ");
  EXPECT_EQ(matcher.flush(), "sto");
}

TEST(StopMatcher, TakesTheLongestOfThoseThatEndTogether) {
  StopMatcher matcher({"c", "abc", "bc"});
  EXPECT_EQ(matcher.feed("xabc"), "x");
  EXPECT_EQ(*matcher.match(), "abc");
}

TEST(StopMatcher, KeepsMultibyteCharactersWhole) {
  StopMatcher matcher({"é!"});
  EXPECT_EQ(matcher.feed("caf"), "caf");
  EXPECT_EQ(matcher.feed("é"), "");
  EXPECT_EQ(matcher.feed("è"), "éè");
}

TEST(StopMatcher, MayBeginButNotEndInAnUnarmedPiece) {
  StopMatcher matcher({"aa"});
  EXPECT_EQ(matcher.feed("aa", false), "a");
  EXPECT_EQ(matcher.feed("a"), "");
  EXPECT_EQ(*matcher.match(), "aa");
}

TEST(StopMatcher, DoesNotDependOnThePieces) {
  std::mt19937 random(7);
  const auto text_of = [&](size_t longest, int letters) {
    std::string text(random() % longest + 1, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    const int letters = 1 + static_cast<int>(random() % 3);
    std::vector<std::string> stops(random() % 4 + 1);
    for (std::string& stop : stops) stop = text_of(5, letters);
    const std::string text = text_of(24, letters + 1);
    const size_t unarmed = random() % 3 == 0 ? random() % (text.size() + 1) : 0;

    StopMatcher matcher(stops);
    Outcome outcome;
    std::string fed;
    for (size_t at = 0; at < text.size() && matcher.match() == nullptr;) {
      const size_t limit = at < unarmed ? unarmed - at : text.size() - at;
      const std::string piece = text.substr(at, std::min(limit, random() % 6 + 1));
      outcome.text += matcher.feed(piece, at >= unarmed);
      at += piece.size();
      fed += piece;
      // All that is certain is out; what may still become a stop is not.
      if (matcher.match() == nullptr) {
        ASSERT_EQ(outcome.text.size(), fed.size() - longest_begun(fed, stops)) << fed;
      }
    }
    outcome.text += matcher.flush();
    if (matcher.match() != nullptr) outcome.stop = *matcher.match();
    ASSERT_EQ(outcome, by_force(text, stops, unarmed)) << text;
  }
}

}  // namespace
}  // namespace quire::api
