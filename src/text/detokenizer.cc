#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

namespace quire::text {

DetokenizeStream::DetokenizeStream(const Tokenizer& tokenizer, DetokenizeOptions options)
    : tokenizer_(&tokenizer),
      skip_special_(options.skip_special),
      shown_(std::move(options.shown)),
      leading_space_(options.at_start ? tokenizer.leading_space() : LeadingSpace::kKeep) {}

std::string DetokenizeStream::push(TokenId id) {
  std::string out;
  push_to(out, id);
  return out;
}

void DetokenizeStream::push_to(std::string& out, TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id) && std::ranges::find(shown_, id) == shown_.end()) return;
  std::string_view piece = tokenizer_->piece(id);
  switch (std::exchange(leading_space_, LeadingSpace::kKeep)) {
    case LeadingSpace::kKeep:
      break;
    case LeadingSpace::kDropOne:
      if (piece.starts_with(' ')) piece.remove_prefix(1);
      break;
    case LeadingSpace::kDropAll: {
      std::string dropped(piece);
      std::erase(dropped, ' ');
      utf8_.push(dropped, out);
      return;
    }
  }
  utf8_.push(piece, out);
}

std::string DetokenizeStream::flush() {
  std::string out;
  utf8_.flush(out);
  return out;
}

}  // namespace quire::text
