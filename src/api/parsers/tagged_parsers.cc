// Calls whose arguments stand between tags, each by itself.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "api/json.h"
#include "api/json_writer.h"
#include "api/parsers/pending_text.h"
#include "api/parsers/tool_parsers.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;
using Pieces = std::vector<OutputPiece>;

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
constexpr size_t kLongestName = 256;  // bytes, with what begins it; a longer one is none

struct Tags {
  std::string_view name_begin;              // may be empty
  std::vector<std::string_view> name_ends;  // the first is taken, the others are read again
  std::string_view key_begin, key_end;
  std::string_view value_begin, value_end;  // the first may be empty
  std::string_view call_end = {};           // behind it another name may follow; empty: only kEnd ends a call
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

class TaggedParser final : public SteppedParser {
 public:
  TaggedParser(Tags tags, std::vector<ToolSpec> tools) : tags_(std::move(tags)), tools_(std::move(tools)) {}

  void finish(Pieces& out) override {
    if (state_ == State::kName) text_.add(std::string(kBegin) + pending_.take_all(), out);
    if (state_ == State::kText) text_.add(pending_.take_all(), out);
    text_.finish(out);
  }

 private:
  enum class State : uint8_t { kText, kName, kNext, kKey, kValueBegin, kValue, kBehind };

  bool step(Pieces& out) override {
    switch (state_) {
      case State::kText: {
        const auto text = until({{kBegin}});
        text_.add(text.before, out);
        return text.marker >= 0 && go(State::kName);
      }
      case State::kName:
        return read_name(out);
      case State::kNext: {
        std::vector<std::string_view> markers = {tags_.key_begin, kEnd};
        if (!tags_.call_end.empty()) markers.push_back(tags_.call_end);
        const int marker = until(markers).marker;
        if (marker > 0) calls_.arguments(first_ ? "{}" : "}", out);
        return marker >= 0 && go(marker == 0 ? State::kKey : marker == 1 ? State::kText : State::kBehind);
      }
      case State::kBehind: {
        const std::array<std::string_view, 2> markers = {kEnd, tags_.name_begin};
        const auto place = pending_.find(markers);
        pending_.take(place.at);
        if (place.marker == 0) pending_.take(kEnd.size());
        return place.marker >= 0 && go(place.marker == 0 ? State::kText : State::kName);
      }
      case State::kKey: {
        const auto key = until({{tags_.key_end}}, false);
        if (key.marker < 0) return false;
        key_ = trimmed(key.before);
        return go(tags_.value_begin.empty() ? State::kValue : State::kValueBegin);
      }
      case State::kValueBegin:
        return until({{tags_.value_begin}}).marker >= 0 && go(State::kValue);
      case State::kValue: {
        const auto value = until({{tags_.value_end}}, false);
        if (value.marker < 0) return false;
        write_argument(value.before, out);
        return go(State::kNext);
      }
    }
    return false;
  }

  struct Taken {
    std::string before;
    int marker;
  };
  // Takes up to and with the first of the markers; `part`: also what is before none.
  Taken until(std::span<const std::string_view> markers, bool part = true) {
    const auto place = pending_.find(markers);
    if (place.marker < 0) return {part ? pending_.take(place.at) : "", -1};
    Taken taken{pending_.take(place.at), place.marker};
    pending_.take(markers[static_cast<size_t>(place.marker)].size());
    return taken;
  }

  bool go(State state) {
    state_ = state;
    return true;
  }

  bool read_name(Pieces& out) {
    const size_t at = std::min(pending_.view().find_first_not_of(kBlanks), pending_.view().size());
    const std::string_view rest = pending_.view().substr(at);
    if (rest.size() < tags_.name_begin.size() && tags_.name_begin.starts_with(rest)) return false;
    const bool begins = rest.starts_with(tags_.name_begin);
    const auto end = name_end(rest);
    if (begins && end.marker < 0 && rest.size() <= kLongestName + kEnd.size()) return false;
    const bool whole = begins && end.marker >= 0;
    const std::string name(whole ? trimmed(rest.substr(0, end.at).substr(tags_.name_begin.size())) : "");
    if (name.empty()) {
      text_.add(kBegin, out);
      return go(State::kText);
    }
    text_.marker();
    calls_.begin(name, out);
    tool_ = std::ranges::find(tools_, name, &ToolSpec::name);
    first_ = true;
    pending_.take(at + end.at + (end.marker == 0 ? tags_.name_ends[0].size() : 0));
    return go(State::kNext);
  }

  PendingText::Place name_end(std::string_view text) const {
    for (size_t i = 0; i < std::min(text.size(), kLongestName); ++i)
      for (size_t m = 0; m < tags_.name_ends.size(); ++m)
        if (text.substr(i).starts_with(tags_.name_ends[m])) return {i, static_cast<int>(m)};
    return {};
  }

  void write_argument(std::string_view value, Pieces& out) {
    std::string text = first_ ? "{" : ", ";
    append_json_string(text, key_);
    text += ": ";
    const bool is_string = tool_ != tools_.end() && tool_->strings.contains(key_);
    // A line break on either side belongs to the tags.
    if (tags_.value_begin.empty()) {
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
    }
    const std::string_view json = trimmed(value);
    if (!is_string && JsonDocument::parse(json)) {
      text += json;
    } else {
      append_json_string(text, value);
    }
    calls_.arguments(text, out);
    first_ = false;
  }

  const Tags tags_;
  const std::vector<ToolSpec> tools_;
  State state_ = State::kText;
  ReadableText text_{Kind::kContent};
  CallWriter calls_;
  std::vector<ToolSpec>::const_iterator tool_;
  std::string key_;
  bool first_ = true;  // no argument has come
};

}  // namespace

std::unique_ptr<OutputParser> make_glm45_parser(std::vector<ToolSpec> tools) {
  return std::make_unique<TaggedParser>(Tags{.name_begin = "",
                                             .name_ends = {"\n", "<arg_key>", kEnd},
                                             .key_begin = "<arg_key>",
                                             .key_end = "</arg_key>",
                                             .value_begin = "<arg_value>",
                                             .value_end = "</arg_value>"},
                                        std::move(tools));
}

std::unique_ptr<OutputParser> make_qwen3_coder_parser(std::vector<ToolSpec> tools) {
  return std::make_unique<TaggedParser>(Tags{.name_begin = "<function=",
                                             .name_ends = {">"},
                                             .key_begin = "<parameter=",
                                             .key_end = ">",
                                             .value_begin = "",
                                             .value_end = "</parameter>",
                                             .call_end = "</function>"},
                                        std::move(tools));
}

}  // namespace quire::api
