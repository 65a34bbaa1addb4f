// What an answer must follow: a schema, an expression, a grammar. Made by who knows the text of the model's tokens
// (text/grammar.h); the engine knows a Constraint only as masks over token ids.
//
// A Constraint is immutable: any number of requests may share one, on any threads. A ConstraintMatcher is one answer's
// place in it. What it says depends on the tokens it was given alone, not on time, other answers or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/error.h"

namespace quire {

// Words of a mask over so many tokens: bit i % 32 of word i / 32 is token i's.
constexpr size_t mask_words(int64_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

// One thread at a time.
class ConstraintMatcher {
 public:
  virtual ~ConstraintMatcher() = default;

  // Sets the bits of all tokens that may come next, end tokens among them where the answer may end, and clears the
  // others; of mask_words(vocab_size()) words. kInvalidRequest if that takes more steps than the limits allow.
  virtual Result<void> fill(std::span<uint32_t> mask) = 0;
  // Goes on by a token (int32_t, as all TokenIds) of the latest mask. True if nothing may follow it.
  virtual Result<bool> accept(int32_t token) = 0;
  // Takes back the latest `tokens` tokens.
  virtual Result<void> rollback(size_t tokens) = 0;
};

class Constraint {
 public:
  virtual ~Constraint() = default;

  virtual Result<std::unique_ptr<ConstraintMatcher>> start() const = 0;
  // Of the model that it was made for.
  virtual int64_t vocab_size() const = 0;
};

}  // namespace quire
