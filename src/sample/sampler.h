// Logits to a token: one order of operations for every row, also for rows that verify drafts.
//
//   allowed and banned tokens; bias; penalties; temperature; top-k; top-p; min-p; then the greatest logit + noise.
//
// Pure functions of the logits, the parameters and the request's own tokens. docs/determinism.md, rule 15.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "quire/error.h"
#include "quire/request.h"

namespace quire::sample {

// kInvalidRequest, naming the field, unless every parameter is in range and every token id below `vocab_size`.
Result<void> validate(const SamplingParams& params, int64_t vocab_size);

// Which tokens a request has seen, kept only if a penalty needs it.
class TokenCounts {
 public:
  TokenCounts(const SamplingParams& params, std::span<const TokenId> prompt);
  void add_output(TokenId token);

  struct Count {
    int output = 0;
    bool in_prompt = false;
  };
  const std::unordered_map<TokenId, Count>& counts() const { return counts_; }

 private:
  bool wanted_;
  std::unordered_map<TokenId, Count> counts_;
};

struct SampleContext {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;
  std::span<const TokenId> end_tokens = {};  // not to be chosen before min_tokens
  int64_t num_output = 0;                    // tokens generated so far
  int64_t position = 0;                      // of the token to be chosen
};

// Chooses a token. `logits` is used up. Logits of the model that are NaN or +infinity are kInternal, and so
// is what bias and penalties make infinite; kInvalidRequest if the request's own limits leave no token.
Result<TokenId> sample(const kernels::KernelTable& table, std::span<float> logits, const SampleContext& context);

// Whether sample() leaves the logits as they are: greedy, without limits, bias or penalties.
bool leaves_logits(const SamplingParams& params);

// Natural log-probability and rank of `token`, and of the `top` most likely tokens, from unchanged logits.
PositionLogprobs log_probabilities(const kernels::KernelTable& table, std::span<const float> logits, TokenId token,
                                   int top);

}  // namespace quire::sample
