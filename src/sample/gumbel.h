// Gumbel noise that belongs to a token: a pure function of (seed, choice, position, token id).
//
// The token with the greatest logit + noise is a sample of the softmax of the logits. Because the noise is the token's
// own, it does not matter in which order tokens are looked at, which others are left, or what runs beside.
// docs/determinism.md, rule 10.
#pragma once

#include <cstdint>
#include <span>

#include "quire/request.h"

namespace quire::sample {

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t position = 0;  // of the token that is sampled
};

// -log(-log(1 - u)), u = (r + 1/2) * 2^-32 with 32 random bits r. Between -3.2 and 22.9.
float gumbel_noise(const NoiseKey& key, TokenId token);

// The token with the greatest logits[token] + noise; ties go to the lower id. Entries of -infinity never win; one at
// least must be finite, and none +infinity or NaN.
TokenId sample_gumbel(std::span<const float> logits, const NoiseKey& key);

}  // namespace quire::sample
