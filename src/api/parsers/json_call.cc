#include "api/parsers/json_call.h"

#include <optional>
#include <utility>

#include "api/json.h"

namespace quire::api {
namespace {

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

// The text of a quoted JSON string.
std::optional<std::string> string_in(std::string_view quoted) {
  const auto document = JsonDocument::parse(quoted);
  if (!document || !document->root().is_string()) return std::nullopt;
  return std::string(std::string_view(document->root()));
}

}  // namespace

JsonValueEnd::Step JsonValueEnd::push(char c) {
  if (in_string_) {
    const bool ends = !escaped_ && c == '"';
    escaped_ = !escaped_ && c == '\\';
    in_string_ = !ends;
    return ends && depth_ == 0 ? Step::kLast : Step::kMore;
  }
  if (begun_ && depth_ == 0 && (is_blank(c) || c == ',' || c == '}' || c == ']')) return Step::kBehind;
  begun_ = true;
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') return --depth_ <= 0 ? Step::kLast : Step::kMore;
  return Step::kMore;
}

JsonCall::Step JsonCall::push(char c, CallWriter& calls, std::vector<OutputPiece>& out) {
  if (!named_) text_ += c;
  switch (state_) {
    case State::kObject:
      if (is_blank(c)) return Step::kMore;
      state_ = State::kKey;
      return c == '{' ? Step::kMore : bad();
    case State::kKey:
      if (is_blank(c)) return Step::kMore;
      if (c == '}' && first_key_) return end_object(calls, out);
      first_key_ = false;
      key_ = c;
      key_escaped_ = false;
      state_ = State::kInKey;
      return c == '"' ? Step::kMore : bad();
    case State::kInKey: {
      key_ += c;
      const bool ends = c == '"' && !key_escaped_;
      key_escaped_ = c == '\\' && !key_escaped_;
      if (!ends) return Step::kMore;
      auto text = string_in(key_);
      if (!text) return bad();
      key_ = std::move(*text);
      state_ = State::kColon;
      return Step::kMore;
    }
    case State::kColon:
      if (is_blank(c)) return Step::kMore;
      state_ = State::kValue;
      value_.clear();
      end_ = {};
      return c == ':' ? Step::kMore : bad();
    case State::kValue:
      return value_character(c, calls, out);
    case State::kComma:
      if (is_blank(c)) return Step::kMore;
      if (c == '}') return end_object(calls, out);
      state_ = State::kKey;
      return c == ',' ? Step::kMore : bad();
  }
  return bad();
}

JsonCall::Step JsonCall::value_character(char c, CallWriter& calls, std::vector<OutputPiece>& out) {
  if (value_.empty()) {
    if (is_blank(c)) return Step::kMore;
    if (std::string_view(",:]}").find(c) != std::string_view::npos) return bad();
    at_once_ = named_ && is_arguments() && !has_arguments_ && c != '"';
  }
  const JsonValueEnd::Step step = end_.push(c);
  if (step != JsonValueEnd::Step::kBehind) {
    if (at_once_) calls.arguments({&c, 1}, out);
    if (!at_once_ || value_.empty()) value_ += c;
    if (step == JsonValueEnd::Step::kMore) return Step::kMore;
  }
  state_ = State::kComma;
  if (at_once_) {
    has_arguments_ = true;
  } else if (!end_value(calls, out)) {
    return bad();
  }
  if (step == JsonValueEnd::Step::kLast) return Step::kMore;
  if (!named_) text_.pop_back();
  return push(c, calls, out);
}

// False if the call cannot be one.
bool JsonCall::end_value(CallWriter& calls, std::vector<OutputPiece>& out) {
  if (key_ == "name" && !named_) {
    const auto name = string_in(value_);
    if (!name || name->empty() || !known_(*name)) return false;
    named_ = true;
    calls.begin(*name, out);
    calls.arguments(arguments_, out);
  } else if (is_arguments() && !has_arguments_) {
    has_arguments_ = true;
    std::string text = value_;
    if (value_[0] == '"') {
      auto inner = string_in(value_);
      if (!inner) return named_;
      text = std::move(*inner);
    }
    if (named_)
      calls.arguments(text, out);
    else
      arguments_ = std::move(text);
  }
  return true;
}

JsonCall::Step JsonCall::end_object(CallWriter& calls, std::vector<OutputPiece>& out) {
  if (!named_) return Step::kNoCall;
  if (!has_arguments_) calls.arguments("{}", out);
  return Step::kDone;
}

JsonCalls::Step JsonCalls::push(char c, CallWriter& calls, std::vector<OutputPiece>& out) {
  if (!named_) text_ += c;
  if (state_ == State::kCall) return in_call(c, calls, out);
  if (is_blank(c)) return Step::kMore;
  if (state_ == State::kBehind) {
    if (in_list_ && c == ']') return Step::kDone;
    if (c != (in_list_ ? ',' : ';')) return Step::kDoneBefore;
    state_ = State::kItem;
    return Step::kMore;
  }
  if (state_ == State::kBegin && c == '[') {
    in_list_ = true;
    state_ = State::kItem;
    return Step::kMore;
  }
  state_ = State::kCall;
  call_ = JsonCall(known_);
  return in_call(c, calls, out);
}

JsonCalls::Step JsonCalls::in_call(char c, CallWriter& calls, std::vector<OutputPiece>& out) {
  const JsonCall::Step step = call_.push(c, calls, out);
  named_ = named_ || call_.named();
  if (step == JsonCall::Step::kNoCall) return no_call();
  if (step == JsonCall::Step::kDone) state_ = State::kBehind;
  return Step::kMore;
}

JsonCalls::Step JsonCalls::read(PendingText& pending, CallWriter& calls, std::vector<OutputPiece>& out) {
  size_t read = 0;
  Step step = Step::kMore;
  for (const char c : pending.view()) {
    step = push(c, calls, out);
    if (step != Step::kDoneBefore) ++read;
    if (step != Step::kMore) break;
  }
  pending.take(read);
  return step;
}

}  // namespace quire::api
