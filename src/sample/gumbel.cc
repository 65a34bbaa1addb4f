#include "sample/gumbel.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/math.h"
#include "sample/philox.h"

namespace quire::sample {
namespace {

// What the noise is for, so that other uses of the same seed and position stay independent.
constexpr uint32_t kPurposeToken = 0;
constexpr int kTokensPerCall = 4;
constexpr float kLog2e = 1.44269504F;

PhiloxCounter bits_of(const NoiseKey& key, TokenId first_token) {
  const auto position = static_cast<uint64_t>(key.position);
  return philox({static_cast<uint32_t>(first_token / kTokensPerCall), static_cast<uint32_t>(position),
                 static_cast<uint32_t>(position >> 32) << 8 | kPurposeToken, key.choice},
                key.seed);
}

// -log(1 - u), also where 1 - u would round to 1.
float exponential(float u) {
  constexpr float kSmall = 1.0F / 256;
  if (u >= kSmall) return -kernels::log(1 - u);
  return std::fma(u * u, std::fma(u, std::fma(u, 0.25F, 1.0F / 3), 0.5F), u);
}

float noise_of(uint32_t bits) {
  const float u = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;
  return -kernels::log(exponential(std::min(u, 1 - 0x1p-24F)));
}

// Random bits at or above this cannot bring a token that is `behind` >= 0 in front: its noise would need
// -log(1 - u) < 2^-(behind * log2 e), and -log(1 - u) >= u. One power of two is left as a margin.
uint64_t bits_bound(float behind) {
  const float exponent = behind * kLog2e;
  if (!(exponent < 40)) return 0;
  const int whole = static_cast<int>(exponent) - 1;
  return whole <= 0 ? uint64_t{1} << 32 : uint64_t{1} << 32 >> whole;
}

}  // namespace

float gumbel_noise(const NoiseKey& key, TokenId token) {
  return noise_of(bits_of(key, token)[static_cast<size_t>(token % kTokensPerCall)]);
}

TokenId sample_gumbel(std::span<const float> logits, const NoiseKey& key) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto n = static_cast<TokenId>(logits.size());
  // Start from the most likely token: then hardly any other needs its noise computed.
  const auto top = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  TokenId best = top;
  float best_value = logits[static_cast<size_t>(top)] + gumbel_noise(key, top);

  for (TokenId first = 0; first < n; first += kTokensPerCall) {
    const TokenId end = std::min<TokenId>(first + kTokensPerCall, n);
    const float* values = logits.data() + first;
    if (std::all_of(values, values + (end - first), [](float x) { return x == kNever; })) continue;
    const PhiloxCounter bits = bits_of(key, first);
    for (TokenId token = first; token < end; ++token) {
      const float logit = logits[static_cast<size_t>(token)];
      const uint32_t r = bits[static_cast<size_t>(token - first)];
      if (logit == kNever || r > bits_bound(best_value - logit)) continue;
      const float value = logit + noise_of(r);
      if (value > best_value || (value == best_value && token < best)) {
        best = token;
        best_value = value;
      }
    }
  }
  return best;
}

}  // namespace quire::sample
