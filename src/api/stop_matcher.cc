#include "api/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace quire::api {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) {
    Pattern pattern{.text = text, .fallback = std::vector<size_t>(text.size() + 1, 0)};
    size_t border = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = pattern.fallback[border];
      if (text[i] == text[border]) ++border;
      pattern.fallback[i + 1] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::Pattern::advance(char c) {
  if (state == text.size()) state = fallback[state];
  while (state > 0 && c != text[state]) state = fallback[state];
  if (c == text[state]) ++state;
  return state == text.size();
}

std::string StopMatcher::feed(std::string_view piece, bool armed) {
  if (match_) return {};
  if (patterns_.empty()) return std::string(piece);
  for (size_t i = 0; i < piece.size(); ++i) {
    for (size_t p = 0; p < patterns_.size(); ++p) {
      const bool complete = patterns_[p].advance(piece[i]) && armed;
      if (complete && (!match_ || patterns_[p].text.size() > match()->size())) match_ = p;
    }
    if (!match_) continue;
    held_ += piece.substr(0, i + 1);
    held_.resize(held_.size() - match()->size());
    return std::exchange(held_, {});
  }
  held_ += piece;
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) {
    // A match that was not armed is over: only its own border can still become one.
    keep = std::max(keep, pattern.state == pattern.text.size() ? pattern.fallback[pattern.state] : pattern.state);
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace quire::api
