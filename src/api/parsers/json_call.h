// Reads a call that is written as a JSON object, {"name": ..., "arguments": {...}}, character by character.
//
// "parameters" means the same as "arguments"; arguments in a string are taken out of it; members of other names are
// passed over. The arguments come out as they are written, as soon as the name is known.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/parsers/pending_text.h"

namespace quire::api {

// Finds the end of one JSON value. It balances brackets and strings, and judges nothing else.
class JsonValueEnd {
 public:
  enum class Step : uint8_t { kMore, kLast, kBehind };  // kBehind: the value ended before this character

  Step push(char c);

 private:
  int depth_ = 0;
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

class JsonCall {
 public:
  enum class Step : uint8_t { kMore, kDone, kNoCall };

  // `known` says whether there is a tool of this name; kNoCall if not.
  explicit JsonCall(std::function<bool(std::string_view)> known) : known_(std::move(known)) {}

  // Once it says kNoCall, text() is all that it has taken, and no piece of it has come out. What is behind kDone or a
  // name that has come is not read any more: kDone also where it is no JSON.
  Step push(char c, CallWriter& calls, std::vector<OutputPiece>& out);
  const std::string& text() const { return text_; }
  bool named() const { return named_; }

 private:
  enum class State : uint8_t { kObject, kKey, kInKey, kColon, kValue, kComma };

  Step bad() const { return named_ ? Step::kDone : Step::kNoCall; }
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }
  Step value_character(char c, CallWriter& calls, std::vector<OutputPiece>& out);
  bool end_value(CallWriter& calls, std::vector<OutputPiece>& out);
  Step end_object(CallWriter& calls, std::vector<OutputPiece>& out);

  std::function<bool(std::string_view)> known_;
  State state_ = State::kObject;
  bool first_key_ = true;
  bool named_ = false;
  bool has_arguments_ = false;
  std::string text_;       // until the name has come
  std::string key_;        // the quoted form while it comes, then its text
  std::string value_;      // of the member, where it does not come out at once
  std::string arguments_;  // that came before the name
  JsonValueEnd end_;
  bool at_once_ = false;  // the value is arguments, which come out while they are read
  bool key_escaped_ = false;
};

// One such call or several: in a list, or with ; between them.
class JsonCalls {
 public:
  enum class Step : uint8_t { kMore, kDone, kDoneBefore, kNoCall };  // kDoneBefore: the character does not belong to it

  explicit JsonCalls(std::function<bool(std::string_view)> known) : known_(std::move(known)), call_(known_) {}

  // As JsonCall::push; kNoCall only before the first name has come.
  Step push(char c, CallWriter& calls, std::vector<OutputPiece>& out);
  // Takes from `pending` up to the first step that is not kMore.
  Step read(PendingText& pending, CallWriter& calls, std::vector<OutputPiece>& out);
  const std::string& text() const { return text_; }
  bool named() const { return named_; }

 private:
  enum class State : uint8_t { kBegin, kItem, kCall, kBehind };

  Step no_call() const { return named_ ? Step::kDone : Step::kNoCall; }
  Step in_call(char c, CallWriter& calls, std::vector<OutputPiece>& out);

  std::function<bool(std::string_view)> known_;
  JsonCall call_;
  State state_ = State::kBegin;
  bool in_list_ = false;
  bool named_ = false;
  std::string text_;  // until a name has come
};

}  // namespace quire::api
