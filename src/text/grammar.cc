#include "text/grammar.h"

#include <fmt/format.h>

#include <utility>

#include "text/boundary.h"

namespace quire::text {
namespace {

struct Free {
  void operator()(quire_text_grammar* grammar) const { quire_text_grammar_free(grammar); }
  void operator()(quire_text_matcher* matcher) const { quire_text_matcher_free(matcher); }
};

int32_t number_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return QUIRE_TEXT_GRAMMAR_JSON_SCHEMA;
    case GrammarKind::kRegex:
      return QUIRE_TEXT_GRAMMAR_REGEX;
    case GrammarKind::kChoice:
      return QUIRE_TEXT_GRAMMAR_CHOICE;
    case GrammarKind::kLark:
      return QUIRE_TEXT_GRAMMAR_LARK;
  }
  return -1;
}

// The failure of the library, put down to the request's field.
std::unexpected<Error> refused(int32_t status, quire_text_bytes message, std::string_view what,
                               const std::string& param) {
  Error error = failure(status, message).error();
  return fail(error.kind, fmt::format("{}: {} {}", param, what, error.message), param);
}

class Matcher final : public ConstraintMatcher {
 public:
  Matcher(quire_text_matcher* handle, std::string param) : handle_(handle), param_(std::move(param)) {}

  Result<void> fill(std::span<uint32_t> mask) override {
    quire_text_bytes message{};
    return checked(quire_text_matcher_mask(handle_.get(), mask.data(), mask.size(), &message), message);
  }

  Result<bool> accept(TokenId token) override {
    quire_text_bytes message{};
    bool finished = false;
    const int32_t status = quire_text_matcher_accept(handle_.get(), static_cast<uint32_t>(token), &finished, &message);
    if (auto done = checked(status, message); !done) return std::unexpected(done.error());
    return finished;
  }

  Result<void> rollback(size_t tokens) override {
    quire_text_bytes message{};
    return checked(quire_text_matcher_rollback(handle_.get(), tokens, &message), message);
  }

 private:
  Result<void> checked(int32_t status, quire_text_bytes message) const {
    if (status == QUIRE_TEXT_OK) return {};
    return refused(status, message, "the answer cannot go on:", param_);
  }

  std::unique_ptr<quire_text_matcher, Free> handle_;
  std::string param_;
};

class Grammar final : public Constraint {
 public:
  Grammar(quire_text_grammar* handle, std::string param, int64_t vocab_size)
      : handle_(handle), param_(std::move(param)), vocab_size_(vocab_size) {}

  Result<std::unique_ptr<ConstraintMatcher>> start() const override {
    quire_text_matcher* raw = nullptr;
    quire_text_bytes message{};
    const int32_t status = quire_text_matcher_start(handle_.get(), &raw, &message);
    if (status != QUIRE_TEXT_OK) return refused(status, message, "the answer cannot begin:", param_);
    return std::make_unique<Matcher>(raw, param_);
  }

  int64_t vocab_size() const override { return vocab_size_; }

 private:
  std::unique_ptr<quire_text_grammar, Free> handle_;
  std::string param_;
  int64_t vocab_size_;
};

}  // namespace

std::string_view grammar_engine() {
  quire_text_str name{};
  quire_text_grammar_engine(&name);
  return {reinterpret_cast<const char*>(name.data), name.size};
}

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, std::vector<TokenId> end_tokens, int64_t vocab_size)
    : vocab_size_(vocab_size),
      vocabulary_(std::async(std::launch::async, [&tokenizer, ends = std::move(end_tokens), vocab_size] {
        return tokenizer.grammar_vocabulary(ends, vocab_size);
      })) {}

Result<std::shared_ptr<const Constraint>> GrammarCompiler::compile(const GrammarText& grammar) const {
  const Vocabulary& vocabulary = vocabulary_.get();
  if (!vocabulary) return std::unexpected(vocabulary.error());
  quire_text_grammar* raw = nullptr;
  quire_text_bytes message{};
  const int32_t status =
      quire_text_grammar_compile(vocabulary->get(), number_of(grammar.kind), borrow(grammar.text), &raw, &message);
  if (status != QUIRE_TEXT_OK) return refused(status, message, "it does not compile:", grammar.param);
  return std::make_shared<Grammar>(raw, grammar.param, vocab_size_);
}

}  // namespace quire::text
