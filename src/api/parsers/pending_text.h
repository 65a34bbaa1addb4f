// What output parsers are made of: text that waits to be read, blanks that go with a marker, numbered calls.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/parsers/output_parser.h"

namespace quire::api {

// Appends to `out`, to its last piece where that is of the same kind.
void add_piece(std::vector<OutputPiece>& out, OutputPiece::Kind kind, int call, std::string_view text);

inline constexpr std::string_view kBlanks = " \t\r\n";

// Text that has come and has not been read.
class PendingText {
 public:
  void add(std::string_view text) { text_ += text; }
  std::string_view view() const { return std::string_view(text_).substr(begin_); }
  bool empty() const { return begin_ == text_.size(); }
  std::string take(size_t bytes);
  std::string take_all() { return take(view().size()); }
  // Drops blanks at the front.
  void skip_blanks();

  struct Place {
    size_t at = 0;    // text before it is in front of every marker, also of those that may yet come
    int marker = -1;  // the number of the marker there; -1: none is complete
  };
  // The first of these markers. Searched text is not searched again, as long as nothing is taken and the markers are
  // the same.
  Place find(std::span<const std::string_view> markers);
  // Whether the text is, or may become, one that begins with `marker`.
  bool may_begin_with(std::string_view marker) const;
  bool begins_with(std::string_view marker) const { return view().starts_with(marker); }

 private:
  std::string text_;
  size_t begin_ = 0;
  size_t searched_ = 0;  // from begin_ on
};

// A parser that reads in steps, each of which takes some of what has come, or says that it needs more.
class SteppedParser : public OutputParser {
 public:
  void feed(std::string_view text, std::vector<OutputPiece>& out) final {
    pending_.add(text);
    while (step(out)) {
    }
  }

 protected:
  // False when more text is needed.
  virtual bool step(std::vector<OutputPiece>& out) = 0;

  PendingText pending_;
};

// Text that people read. Blanks next to a marker belong to it, and are left out.
class ReadableText {
 public:
  explicit ReadableText(OutputPiece::Kind kind) : kind_(kind) {}

  void add(std::string_view text, std::vector<OutputPiece>& out);
  void marker();
  void finish(std::vector<OutputPiece>& out);

 private:
  OutputPiece::Kind kind_;
  std::string blanks_;          // at the end of what came
  bool behind_marker_ = false;  // and nothing but blanks since
};

// Calls in the order in which they come.
class CallWriter {
 public:
  void begin(std::string_view name, std::vector<OutputPiece>& out) {
    out.push_back({OutputPiece::Kind::kCall, ++last_, std::string(name)});
  }
  void arguments(std::string_view text, std::vector<OutputPiece>& out) const {
    add_piece(out, OutputPiece::Kind::kArguments, last_, text);
  }

 private:
  int last_ = -1;
};

}  // namespace quire::api
