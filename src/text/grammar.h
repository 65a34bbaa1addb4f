// Grammars that answers must follow, made from their text for one model's tokens.
//
//   GrammarCompiler compiler(tokenizer, info.end_tokens, info.vocab_size);
//   auto constraint = compiler.compile({GrammarKind::kRegex, "[0-9]+"});
//
// A compiler first needs the whole vocabulary as a trie, which takes about a second for 150,000 tokens: a thread of its
// own makes it, and compile() waits for that. All limits count steps and sizes, never time, so an answer depends on no
// load. Immutable; any number of threads may compile at the same time.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/constraint.h"
#include "quire/error.h"
#include "text/tokenizer.h"

struct quire_text_vocabulary;

namespace quire::text {

enum class GrammarKind : uint8_t {
  kJsonSchema,
  kRegex,   // for the whole answer
  kChoice,  // a JSON list of strings, of which the answer is one
  kLark,    // llguidance's variant of Lark
};

struct GrammarText {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text = {};
  std::string param = {};  // the field of the request that it came from, for errors
};

// Name and version of what decides the masks: another one may choose others.
std::string_view grammar_engine();

class GrammarCompiler {
 public:
  // The tokenizer must live until the compiler ends. Ids of the model that the tokenizer does not know are never
  // allowed.
  GrammarCompiler(const Tokenizer& tokenizer, std::vector<TokenId> end_tokens, int64_t vocab_size);

  // kInvalidRequest, naming grammar.param, says what does not compile or is too large. The constraint may outlive the
  // compiler.
  Result<std::shared_ptr<const Constraint>> compile(const GrammarText& grammar) const;

 private:
  using Vocabulary = Result<std::shared_ptr<const quire_text_vocabulary>>;

  int64_t vocab_size_;
  std::shared_future<Vocabulary> vocabulary_;  // its end waits for the thread
};

}  // namespace quire::text
