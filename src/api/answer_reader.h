// Makes pieces of an answer: what is said, reasoned and called, as the request wants to see it; and counts the tokens
// that went into reasoning.
//
// A token counts for the first piece that comes out with it or after it: a marker counts for what it opens. Pieces and
// counts depend on the tokens alone, not on how deltas cut them. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "api/choice.h"
#include "api/parsers/output_parser.h"
#include "api/plan.h"

namespace quire::api {

class AnswerReader {
 public:
  AnswerReader(const Plan& plan, const OutputFormats& formats);

  // It takes text apart: special tokens that are markers must be part of it.
  bool parses() const { return parser_ != nullptr; }
  // Appends to `out`; `last` with the answer's last delta.
  void read(const Choice::Delta& delta, bool last, std::vector<OutputPiece>& out);
  bool called() const { return called_; }  // a tool
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void take(std::vector<OutputPiece> pieces, std::vector<OutputPiece>& out);

  std::unique_ptr<OutputParser> parser_;  // null: all of it is content
  bool show_reasoning_ = true;
  bool many_calls_ = true;
  bool called_ = false;
  int64_t waiting_tokens_ = 0;  // that no piece has come of
  int64_t reasoning_tokens_ = 0;
};

}  // namespace quire::api
