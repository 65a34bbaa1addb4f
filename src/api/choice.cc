#include "api/choice.h"

#include <algorithm>
#include <utility>

namespace quire::api {
namespace {

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return {};
}

}  // namespace

Choice::Choice(const GenerationOptions& options, const text::Tokenizer* tokenizer, std::span<const TokenId> end_tokens,
               std::vector<TokenId> shown)
    : matcher_(options.stop),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      min_tokens_(options.sampling.min_tokens),
      keep_stop_(options.include_stop_str_in_output) {
  if (tokenizer != nullptr) {
    detokenizer_.emplace(
        *tokenizer, text::DetokenizeOptions{.skip_special = options.skip_special_tokens, .shown = std::move(shown)});
  }
}

// Passes text through the matcher. A match ends the answer; text behind it is dropped.
void Choice::add_text(std::string& out, std::string_view piece) {
  out += matcher_.feed(piece, tokens_ > min_tokens_);
  if (matcher_.match() == nullptr) return;
  if (keep_stop_) out += *matcher_.match();
  finish_reason_ = name_of(FinishReason::kStop);
  stop_reason_ = *matcher_.match();
  ended_by_text_ = true;
}

Choice::Delta Choice::accept(Update&& update) {
  Delta delta;
  // The token that ends an answer is not part of its text, unless asked for.
  const bool hides_last = update.finish == FinishReason::kStop && update.stop_token && !keep_stop_;
  for (size_t i = 0; i < update.tokens.size() && !finished(); ++i) {
    ++tokens_;
    delta.tokens.push_back(update.tokens[i]);
    if (i < update.logprobs.size()) delta.logprobs.push_back(std::move(update.logprobs[i]));
    const bool hidden = hides_last && i + 1 == update.tokens.size();
    if (detokenizer_ && !hidden) add_text(delta.text, detokenizer_->push(update.tokens[i]));
    delta.text_ends.push_back(delta.text.size());
  }
  if (!finished() && update.finish != FinishReason::kNone) end(update, delta);
  // The engine has ended it too: nothing is left to cancel.
  if (update.finish != FinishReason::kNone) ended_by_text_ = false;
  return delta;
}

void Choice::end(const Update& update, Delta& delta) {
  if (detokenizer_) add_text(delta.text, detokenizer_->flush());
  if (finished()) return;
  delta.text += matcher_.flush();
  finish_reason_ = name_of(update.finish);
  if (update.stop_token && std::ranges::find(end_tokens_, *update.stop_token) == end_tokens_.end()) {
    stop_reason_ = *update.stop_token;
  }
}

}  // namespace quire::api
