// Calls that are written in JSON.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "api/parsers/json_call.h"
#include "api/parsers/tool_parsers.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;
using Pieces = std::vector<OutputPiece>;

bool any_name(std::string_view) { return true; }

class HermesParser final : public SteppedParser {
 public:
  void finish(Pieces& out) override {
    if (state_ == State::kCalls && !json_.named()) text_.add(std::string(kBegin) + json_.text(), out);
    if (state_ == State::kText) text_.add(pending_.take_all(), out);
    text_.finish(out);
  }

 private:
  static constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
  static constexpr std::array kBegins = {kBegin}, kEnds = {kEnd};
  enum class State : uint8_t { kText, kCalls, kBehind };

  bool step(Pieces& out) override {
    if (state_ == State::kCalls) return read_calls(out);
    const auto place = pending_.find(state_ == State::kText ? kBegins : kEnds);
    const std::string before = pending_.take(place.at);
    if (state_ == State::kText) text_.add(before, out);
    if (place.marker < 0) return false;
    pending_.take((state_ == State::kText ? kBegin : kEnd).size());
    json_ = JsonCalls(any_name);
    state_ = state_ == State::kText ? State::kCalls : State::kText;
    return true;
  }

  bool read_calls(Pieces& out) {
    const auto step = json_.read(pending_, calls_, out);
    if (json_.named()) text_.marker();
    if (step == JsonCalls::Step::kMore) return false;
    if (step == JsonCalls::Step::kNoCall) text_.add(std::string(kBegin) + json_.text(), out);
    state_ = step == JsonCalls::Step::kNoCall ? State::kText : State::kBehind;
    return true;
  }

  State state_ = State::kText;
  ReadableText text_{Kind::kContent};
  CallWriter calls_;
  JsonCalls json_{any_name};
};

class BareJsonParser final : public OutputParser {
 public:
  explicit BareJsonParser(std::vector<ToolSpec> tools)
      : json_([tools = std::move(tools)](std::string_view name) {
          return std::ranges::find(tools, name, &ToolSpec::name) != tools.end();
        }) {}

  void feed(std::string_view text, Pieces& out) override {
    pending_.add(text);
    if (state_ == State::kBegin) begin();
    if (state_ == State::kCalls) read_calls(out);
    if (state_ == State::kText) text_.add(pending_.take_all(), out);
  }
  void finish(Pieces& out) override {
    if (state_ == State::kCalls && !json_.named()) text_.add(begin_ + json_.text(), out);
    if (state_ != State::kCalls) text_.add(pending_.take_all(), out);
    text_.finish(out);
  }

 private:
  static constexpr std::string_view kTag = "<|python_tag|>";
  enum class State : uint8_t { kBegin, kCalls, kText };

  // Blanks and the tag, if it is one.
  void begin() {
    const std::string_view text = pending_.view();
    const size_t at = std::min(text.find_first_not_of(kBlanks), text.size());
    const std::string_view rest = text.substr(at);
    if (rest.size() < kTag.size() && kTag.starts_with(rest)) return;
    begin_ = pending_.take(at + (rest.starts_with(kTag) ? kTag.size() : 0));
    state_ = State::kCalls;
  }

  void read_calls(Pieces& out) {
    const auto step = json_.read(pending_, calls_, out);
    if (step == JsonCalls::Step::kMore) return;
    state_ = State::kText;
    if (step == JsonCalls::Step::kNoCall) {
      text_.add(begin_ + json_.text(), out);
    } else {
      text_.marker();
    }
  }

  State state_ = State::kBegin;
  PendingText pending_;
  std::string begin_;
  ReadableText text_{Kind::kContent};
  CallWriter calls_;
  JsonCalls json_;
};

class MistralParser final : public SteppedParser {
 public:
  void finish(Pieces& out) override {
    if (state_ == State::kCalls && !json_.named()) text_.add(std::string(kBegin) + json_.text(), out);
    if (state_ == State::kKind || state_ == State::kName) text_.add(std::string(kBegin) + pending_.take_all(), out);
    if (state_ == State::kText) text_.add(pending_.take_all(), out);
    text_.finish(out);
  }

 private:
  static constexpr std::string_view kBegin = "[TOOL_CALLS]", kId = "[CALL_ID]", kArguments = "[ARGS]", kObject = "{";
  static constexpr std::array kBegins = {kBegin};
  static constexpr std::array kNameEnds = {kArguments, kObject, kBegin};
  enum class State : uint8_t { kText, kKind, kCalls, kName, kArguments };

  bool step(Pieces& out) override {
    switch (state_) {
      case State::kText: {
        const auto place = pending_.find(kBegins);
        text_.add(pending_.take(place.at), out);
        if (place.marker < 0) return false;
        pending_.take(kBegin.size());
        state_ = State::kKind;
        return true;
      }
      case State::kKind: {
        const size_t at = pending_.view().find_first_not_of(kBlanks);
        if (at == std::string_view::npos) return false;
        const char c = pending_.view()[at];
        json_ = JsonCalls(any_name);
        state_ = c == '[' || c == '{' ? State::kCalls : State::kName;
        return true;
      }
      case State::kCalls:
        return read_calls(out);
      case State::kName:
        return read_name(out);
      case State::kArguments:
        return read_arguments(out);
    }
    return false;
  }

  bool read_calls(Pieces& out) {
    const auto step = json_.read(pending_, calls_, out);
    if (json_.named()) text_.marker();
    if (step == JsonCalls::Step::kMore) return false;
    if (step == JsonCalls::Step::kNoCall) text_.add(std::string(kBegin) + json_.text(), out);
    state_ = State::kText;
    return true;
  }

  bool read_name(Pieces& out) {
    const auto place = pending_.find(kNameEnds);
    if (place.marker < 0) return false;
    std::string_view name = pending_.view().substr(0, place.at);
    name = name.substr(0, name.find(kId));
    const size_t begin = std::min(name.find_first_not_of(kBlanks), name.size());
    name = name.substr(begin, name.find_last_not_of(kBlanks) + 1 - begin);
    state_ = kNameEnds[static_cast<size_t>(place.marker)] == kBegin || name.empty() ? State::kText : State::kArguments;
    if (state_ == State::kText) {
      text_.add(std::string(kBegin) + pending_.take(place.at), out);
      return true;
    }
    text_.marker();
    calls_.begin(name, out);
    value_ = {};
    pending_.take(place.at + (kNameEnds[static_cast<size_t>(place.marker)] == kArguments ? kArguments.size() : 0));
    return true;
  }

  bool read_arguments(Pieces& out) {
    size_t read = 0;
    bool more = true;
    for (const char c : pending_.view()) {
      const auto step = value_.push(c);
      more = step == JsonValueEnd::Step::kMore;
      if (step == JsonValueEnd::Step::kBehind) break;
      ++read;
      if (!more) break;
    }
    calls_.arguments(pending_.take(read), out);
    if (!more) state_ = State::kText;
    return !more;
  }

  State state_ = State::kText;
  ReadableText text_{Kind::kContent};
  CallWriter calls_;
  JsonCalls json_{any_name};
  JsonValueEnd value_;
};

class PlainParser final : public OutputParser {
 public:
  void feed(std::string_view text, Pieces& out) override { add_piece(out, Kind::kContent, 0, text); }
  void finish(Pieces&) override {}
};

class ArgumentsParser final : public OutputParser {
 public:
  explicit ArgumentsParser(std::string tool) : tool_(std::move(tool)) {}

  void feed(std::string_view text, Pieces& out) override {
    if (text.empty()) return;
    if (!std::exchange(begun_, true)) calls_.begin(tool_, out);
    calls_.arguments(text, out);
  }
  void finish(Pieces&) override {}

 private:
  std::string tool_;
  bool begun_ = false;
  CallWriter calls_;
};

}  // namespace

std::unique_ptr<OutputParser> make_arguments_parser(std::string tool) {
  return std::make_unique<ArgumentsParser>(std::move(tool));
}
std::unique_ptr<OutputParser> make_hermes_parser() { return std::make_unique<HermesParser>(); }
std::unique_ptr<OutputParser> make_mistral_parser() { return std::make_unique<MistralParser>(); }
std::unique_ptr<OutputParser> make_bare_json_parser(std::vector<ToolSpec> tools) {
  return std::make_unique<BareJsonParser>(std::move(tools));
}
std::unique_ptr<OutputParser> make_plain_parser() { return std::make_unique<PlainParser>(); }

}  // namespace quire::api
