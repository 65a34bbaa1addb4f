// A DetokenizeStream turns the tokens of one sequence into text as they come.
//
// It passes out whole characters only: bytes of an incomplete one are held back until the tokens after it decide. The
// concatenation of all it passes out, with flush(), is the text of all tokens. The cost of a token does not depend on
// how many came before. One thread at a time; the Tokenizer must outlive it.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace quire::text {

struct DetokenizeOptions {
  bool skip_special = true;         // leave special tokens out of the text
  std::vector<TokenId> shown = {};  // but not these
  bool at_start = false;  // the first token begins a text (rather than continuing a prompt): drop its added space
};

class DetokenizeStream {
 public:
  DetokenizeStream(const Tokenizer& tokenizer, DetokenizeOptions options);

  // The text that `id` completes; may be empty. An id that names no token (padding of the model's vocabulary) adds
  // nothing.
  std::string push(TokenId id);
  // The same, appended to `out`.
  void push_to(std::string& out, TokenId id);
  // The end of the sequence: an incomplete character becomes U+FFFD.
  std::string flush();
  // True while bytes are held back: the next token may belong to the same character.
  bool holds_back() const { return utf8_.held_bytes() > 0; }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream utf8_;
  bool skip_special_;
  std::vector<TokenId> shown_;
  LeadingSpace leading_space_;  // still to be done to the first piece
};

}  // namespace quire::text
