#include "api/answer_reader.h"

#include <utility>

#include "api/parsers/pending_text.h"

namespace quire::api {

AnswerReader::AnswerReader(const Plan& plan, const OutputFormats& formats) : parser_(plan.new_parser(formats)) {
  if (!plan.format) return;
  show_reasoning_ = plan.format->include_reasoning;
  many_calls_ = plan.format->tool_use.parallel;
}

void AnswerReader::read(const Choice::Delta& delta, bool last, std::vector<OutputPiece>& out) {
  if (!parser_) return add_piece(out, OutputPiece::Kind::kContent, 0, delta.text);
  const std::string_view text = delta.text;
  size_t read = 0;
  const auto feed_to = [&](size_t end) {
    std::vector<OutputPiece> pieces;
    if (end > read) parser_->feed(text.substr(read, end - read), pieces);
    read = end;
    take(std::move(pieces), out);
  };
  for (const size_t end : delta.text_ends) {
    ++waiting_tokens_;
    feed_to(end);
  }
  feed_to(text.size());
  if (!last) return;
  std::vector<OutputPiece> pieces;
  parser_->finish(pieces);
  take(std::move(pieces), out);
}

void AnswerReader::take(std::vector<OutputPiece> pieces, std::vector<OutputPiece>& out) {
  using Kind = OutputPiece::Kind;
  if (pieces.empty()) return;
  const int64_t tokens = std::exchange(waiting_tokens_, 0);
  if (pieces.front().kind == Kind::kReasoning) reasoning_tokens_ += tokens;
  for (const OutputPiece& piece : pieces) {
    if ((piece.kind == Kind::kReasoning && !show_reasoning_) || (piece.call > 0 && !many_calls_)) continue;
    called_ = called_ || piece.kind == Kind::kCall;
    add_piece(out, piece.kind, piece.call, piece.text);
  }
}

}  // namespace quire::api
