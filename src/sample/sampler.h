// Logits to a token: one order of operations for every row, also for rows that verify drafts.
//
//   the mask of a constraint; allowed and banned tokens; bias; penalties; temperature; top-k; top-p; min-p; then the
//   greatest logit + noise.
//
// Pure functions of the logits, the parameters and the request's own tokens. docs/determinism.md, rule 15.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/scan_kernels.h"
#include "quire/error.h"
#include "quire/request.h"

namespace quire::sample {

// kInvalidRequest, naming the field, unless every parameter is in range and every token id below `vocab_size`.
Result<void> validate(const SamplingParams& params, int64_t vocab_size);

// Which tokens a request has seen, and how often in its output; kept only if a penalty needs it.
class TokenCounts {
 public:
  struct Count {
    TokenId token = 0;
    int output = 0;
  };

  TokenCounts(const SamplingParams& params, std::span<const TokenId> prompt);
  // Makes room for so many different tokens of output, so that add_output() needs none.
  void reserve(size_t output);
  void add_output(TokenId token);
  std::span<const Count> counts() const { return counts_; }  // ascending by token

 private:
  bool wanted_;
  std::vector<Count> counts_;
};

// Memory that choosing needs, kept between calls. One thread at a time.
class SampleScratch {
 public:
  explicit SampleScratch(int64_t vocab_size) { entries.reserve(static_cast<size_t>(vocab_size)); }
  SampleScratch(SampleScratch&&) = default;  // a copy would not have the room

  std::vector<kernels::ScoredId> entries;
};

struct SampleContext {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;
  std::span<const TokenId> end_tokens = {};  // not to be chosen before min_tokens
  int64_t num_output = 0;                    // tokens generated so far
  int64_t position = 0;                      // of the token to be chosen
  std::span<const uint32_t> mask = {};       // of what the request's constraint allows (constraint.h); empty: all
};

// Chooses a token. `logits` is used up. Logits of the model that are NaN or +infinity are kInternal, and so
// is what bias and penalties make infinite; kInvalidRequest if the request's own limits leave no token.
Result<TokenId> sample(const kernels::KernelTable& table, std::span<float> logits, const SampleContext& context,
                       SampleScratch& scratch);

// Whether sample() leaves the logits as they are: greedy, without a mask, limits, bias or penalties.
bool leaves_logits(const SampleContext& context);

// Natural log-probability and rank of `token`, and of the `top` most likely tokens, from unchanged logits.
PositionLogprobs log_probabilities(const kernels::KernelTable& table, std::span<const float> logits, TokenId token,
                                   int top);

}  // namespace quire::sample
