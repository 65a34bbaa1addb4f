#include "api/parsers/pending_text.h"

#include <algorithm>

namespace quire::api {

void add_piece(std::vector<OutputPiece>& out, OutputPiece::Kind kind, int call, std::string_view text) {
  if (text.empty()) return;
  if (!out.empty() && out.back().kind == kind && out.back().call == call && kind != OutputPiece::Kind::kCall) {
    out.back().text += text;
  } else {
    out.push_back({kind, call, std::string(text)});
  }
}

std::string PendingText::take(size_t bytes) {
  std::string taken(view().substr(0, bytes));
  begin_ += taken.size();
  searched_ = 0;
  if (begin_ > text_.size() / 2) {
    text_.erase(0, begin_);
    begin_ = 0;
  }
  return taken;
}

void PendingText::skip_blanks() { take(std::min(view().find_first_not_of(kBlanks), view().size())); }

PendingText::Place PendingText::find(std::span<const std::string_view> markers) {
  const std::string_view text = view();
  for (size_t i = searched_; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    bool may_come = false;
    for (size_t m = 0; m < markers.size(); ++m) {
      if (rest.starts_with(markers[m])) return {i, static_cast<int>(m)};
      may_come = may_come || markers[m].starts_with(rest);
    }
    if (may_come) {
      searched_ = i;
      return {i, -1};
    }
  }
  searched_ = text.size();
  return {text.size(), -1};
}

bool PendingText::may_begin_with(std::string_view marker) const {
  return view().starts_with(marker) || marker.starts_with(view());
}

void ReadableText::add(std::string_view text, std::vector<OutputPiece>& out) {
  if (behind_marker_) text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  if (text.empty()) return;
  behind_marker_ = false;
  const size_t last = text.find_last_not_of(kBlanks);
  if (last != std::string_view::npos) {
    add_piece(out, kind_, 0, blanks_);
    add_piece(out, kind_, 0, text.substr(0, last + 1));
    blanks_.clear();
    text.remove_prefix(last + 1);
  }
  blanks_ += text;
}

void ReadableText::marker() {
  blanks_.clear();
  behind_marker_ = true;
}

void ReadableText::finish(std::vector<OutputPiece>& out) {
  add_piece(out, kind_, 0, blanks_);
  blanks_.clear();
}

}  // namespace quire::api
