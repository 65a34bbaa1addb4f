#include "weights/quantise.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace quire::weights {
namespace {

// Four numbers at once, on every machine in the same order: the compilers' own vectors, of no instruction set by name.
using Four = float __attribute__((vector_size(16)));
using FourInts = int32_t __attribute__((vector_size(16)));
constexpr int kFours = kQuantisedBlock / 4;
using Block = std::array<Four, kFours>;

Four all(float x) { return Four{x, x, x, x}; }
Four smaller(Four a, Four b) { return b < a ? b : a; }
Four larger(Four a, Four b) { return b > a ? b : a; }
FourInts truncated(Four x) { return __builtin_convertvector(x, FourInts); }
float sum_of(Four x) { return (x[0] + x[2]) + (x[1] + x[3]); }

// Of a block without a larger number every scale would be zero in fp16; it is zeros.
constexpr float kSmallest = 1e-7F;
constexpr uint16_t kHalfNan = 0x7e00;

// The smallest and the largest number, of both signs or zero.
struct Range {
  float low = 0;
  float high = 0;
  bool finite = true;

  float magnitude() const { return std::max(high, -low); }
};

Range range_of(const Block& x) {
  Four low = {}, high = {}, poison = {};
  for (const Four four : x) {
    low = smaller(low, four);
    high = larger(high, four);
    poison += four * 0;  // NaN from then on where it is not finite
  }
  return {std::min(std::min(low[0], low[1]), std::min(low[2], low[3])),
          std::max(std::max(high[0], high[1]), std::max(high[2], high[3])), sum_of(poison) == 0};
}

void write_half(std::byte* at, uint16_t half) { std::memcpy(at, &half, sizeof half); }

void quantise_q8_0(const Block& x, const Range& range, std::byte* block) {
  const float scale = range.magnitude() / 127, inverse = range.magnitude() < kSmallest ? 0 : 1 / scale;
  write_half(block, float_to_half(scale));
  for (int i = 0; i < kFours; ++i) {  // to the nearest, halves away from zero; the comparisons are -1 where they hold
    const Four value = x[static_cast<size_t>(i)] * inverse;
    const FourInts whole = truncated(value);
    const Four rest = value - __builtin_convertvector(whole, Four);
    const FourInts q = whole - (rest >= all(0.5F)) + (rest <= all(-0.5F));
    for (int j = 0; j < 4; ++j) block[2 + 4 * i + j] = static_cast<std::byte>(q[j]);
  }
}

// What the number of the largest magnitude becomes in units of the scale, before it is rounded and clipped to -8 to 7.
constexpr float kAnchors[] = {-7.2F, -7.7F, -8.2F, -8.7F, -9.2F};

// Four numbers in units of a scale, to the nearest of -8 to 7, halves to even.
Four four_bits(Four x, float inverse) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: a sum with it has no bits left for fractions
  const Four rounded = (x * inverse + kShift) - kShift;
  return smaller(larger(rounded, all(-8)), all(7));
}

// The scale of the least squared error for the integers that one anchor gives, and how much of the squares it explains.
struct Fit {
  float scale = 0;
  float explained = -1;
  float inverse = 0;  // made the integers
};

Fit fit(const Block& x, float inverse) {
  Four xq = {}, qq = {};
  for (const Four four : x) {
    const Four q = four_bits(four, inverse);
    xq += four * q;
    qq += q * q;
  }
  const float product = sum_of(xq), scale = product / sum_of(qq);
  return {scale, scale * product, inverse};
}

void quantise_q4_0(const Block& x, const Range& range, std::byte* block) {
  Fit best;
  if (range.magnitude() >= kSmallest) {
    const float largest = -range.low >= range.high ? range.low : range.high;
    for (const float anchor : kAnchors) {
      const Fit candidate = fit(x, anchor / largest);
      if (candidate.explained > best.explained) best = candidate;
    }
  }
  write_half(block, float_to_half(best.scale));
  constexpr int kHalf = kFours / 2;  // element i lies beside element i + 16
  for (int i = 0; i < kHalf; ++i) {
    const FourInts low = truncated(four_bits(x[static_cast<size_t>(i)], best.inverse)) + 8;
    const FourInts high = truncated(four_bits(x[static_cast<size_t>(i + kHalf)], best.inverse)) + 8;
    for (int j = 0; j < 4; ++j) block[2 + 4 * i + j] = static_cast<std::byte>(low[j] | high[j] << 4);
  }
}

}  // namespace

void quantise_block(WeightFormat format, std::span<const float, kQuantisedBlock> numbers, std::span<std::byte> block) {
  QUIRE_CHECK(format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_0);
  QUIRE_CHECK(block.size() == static_cast<size_t>(format_info(format).block_bytes));
  Block x;
  std::memcpy(x.data(), numbers.data(), sizeof x);
  const Range range = range_of(x);
  if (!range.finite) {
    std::ranges::fill(block, std::byte{0});
    write_half(block.data(), kHalfNan);
  } else if (format == WeightFormat::kQ8_0) {
    quantise_q8_0(x, range, block.data());
  } else {
    quantise_q4_0(x, range, block.data());
  }
}

}  // namespace quire::weights
