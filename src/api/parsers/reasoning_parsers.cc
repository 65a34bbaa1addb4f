// Reasoning between markers, and Harmony, where it has a channel of its own.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "api/parsers/pending_text.h"
#include "api/parsers/tool_parsers.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;
using Pieces = std::vector<OutputPiece>;

class ReasoningParser final : public OutputParser {
 public:
  ReasoningParser(std::string_view begin, std::string_view end, bool opened, std::unique_ptr<OutputParser> next)
      : begin_(begin), end_(end), next_(std::move(next)), state_(opened ? State::kInside : State::kStart) {
    if (opened) text_.marker();
  }

  void feed(std::string_view text, Pieces& out) override {
    pending_.add(text);
    if (state_ == State::kStart) start();
    if (state_ == State::kInside) inside(out);
    if (state_ == State::kBehind) {
      pending_.skip_blanks();
      if (!pending_.empty()) state_ = State::kNext;
    }
    if (state_ == State::kNext) next_->feed(pending_.take_all(), out);
  }
  void finish(Pieces& out) override {
    if (state_ == State::kStart) next_->feed(pending_.take_all(), out);
    if (state_ == State::kInside) text_.add(pending_.take_all(), out);
    text_.finish(out);
    next_->finish(out);
  }

 private:
  enum class State : uint8_t { kStart, kInside, kBehind, kNext };

  void start() {
    const std::string_view text = pending_.view();
    const size_t at = std::min(text.find_first_not_of(kBlanks), text.size());
    const std::string_view rest = text.substr(at);
    if (rest.size() < begin_.size() && begin_.starts_with(rest)) return;
    const bool begins = rest.starts_with(begin_);
    state_ = begins ? State::kInside : State::kNext;
    if (!begins) return;
    pending_.take(at + begin_.size());
    text_.marker();
  }

  void inside(Pieces& out) {
    const auto place = pending_.find({&end_, 1});
    text_.add(pending_.take(place.at), out);
    if (place.marker < 0) return;
    pending_.take(end_.size());
    text_.marker();
    state_ = State::kBehind;
  }

  const std::string_view begin_, end_;
  const std::unique_ptr<OutputParser> next_;
  State state_;
  PendingText pending_;
  ReadableText text_{Kind::kReasoning};
};

// <|channel|>NAME to=functions.TOOL <|constrain|>json<|message|>TEXT<|end|>, with <|start|>assistant before the second
// message on. What is to the user is in the channels final and commentary.
class HarmonyParser final : public SteppedParser {
 public:
  explicit HarmonyParser(bool calls) : with_calls_(calls) {}

  void finish(Pieces& out) override {
    // A header that was cut says nothing; but an answer that never had one is what was said.
    const bool in_header = any_message_ || pending_.begins_with(kChannel) || pending_.begins_with(kStart);
    if (state_ == State::kText || !in_header) write(pending_.take_all(), out);
  }

 private:
  static constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                                    kFunctions = "functions.";
  static constexpr std::array kHeaderEnds = {kMessage};
  static constexpr std::array<std::string_view, 5> kMessageEnds = {"<|end|>", "<|call|>", "<|return|>", kStart,
                                                                   kChannel};
  enum class State : uint8_t { kHeader, kText };
  enum class To : uint8_t { kUser, kReasoning, kFunction };

  bool step(Pieces& out) override {
    const bool header = state_ == State::kHeader;
    const auto place = header ? pending_.find(kHeaderEnds) : pending_.find(kMessageEnds);
    if (header) {
      if (place.marker < 0) return false;
      read_header(pending_.take(place.at), out);
      pending_.take(kMessage.size());
      any_message_ = true;
      state_ = State::kText;
      return true;
    }
    write(pending_.take(place.at), out);
    if (place.marker < 0) return false;
    const std::string_view end = kMessageEnds[static_cast<size_t>(place.marker)];
    if (end != kChannel) pending_.take(end.size());
    state_ = State::kHeader;
    to_ = To::kUser;
    return true;
  }

  void read_header(std::string_view header, Pieces& out) {
    const auto word_behind = [&](std::string_view marker) -> std::string_view {
      const size_t at = header.find(marker);
      if (at == std::string_view::npos) return {};
      const std::string_view rest = header.substr(at + marker.size());
      return rest.substr(0, std::min(rest.find_first_of(" \t\r\n<"), rest.size()));
    };
    const std::string_view channel = word_behind(kChannel), recipient = word_behind("to=");
    to_ = channel == "analysis" ? To::kReasoning : To::kUser;
    if (with_calls_ && recipient.size() > kFunctions.size() && recipient.starts_with(kFunctions)) {
      to_ = To::kFunction;
      calls_.begin(recipient.substr(kFunctions.size()), out);
    }
  }

  void write(std::string_view text, Pieces& out) {
    if (to_ == To::kFunction) return calls_.arguments(text, out);
    add_piece(out, to_ == To::kReasoning ? Kind::kReasoning : Kind::kContent, 0, text);
  }

  const bool with_calls_;
  State state_ = State::kHeader;
  To to_ = To::kUser;
  bool any_message_ = false;
  CallWriter calls_;
};

}  // namespace

std::unique_ptr<OutputParser> make_reasoning_parser(std::string_view begin, std::string_view end, bool opened,
                                                    std::unique_ptr<OutputParser> next) {
  return std::make_unique<ReasoningParser>(begin, end, opened, std::move(next));
}

std::unique_ptr<OutputParser> make_harmony_parser(bool calls) { return std::make_unique<HarmonyParser>(calls); }

}  // namespace quire::api
