// Rule 4: rows of activations to int8 with one scale per 32.
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kInfinity = 0x7f800000;

float as_float(int bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Magnitudes order like their bits, infinity and NaN above all.
int largest_magnitude(__m512 low, __m512 high) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_castps_si512(low), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_castps_si512(high), magnitude);
  return _mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

// 16 values to nearest even.
__m128i quantised(__m512 x, __m512 inverse) {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

// The sums of the first and the last 16 of 32 int8.
struct Sums {
  int first;
  int last;
};

Sums sums_of(__m256i q) {
  // Offset to unsigned, bytes can be added eight at a time.
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i pairs = _mm256_add_epi64(eights, _mm256_shuffle_epi32(eights, 0x4e));
  return {_mm_cvtsi128_si32(_mm256_castsi256_si128(pairs)) - 16 * 128,
          _mm_cvtsi128_si32(_mm256_extracti128_si256(pairs, 1)) - 16 * 128};
}

}  // namespace

void quantise_row(const float* x, int k, std::byte* q, std::byte* meta, size_t step) {
  for (int g = 0; g < k / kGroup; g++, x += kGroup, q += step, meta += step) {
    __m512 low = _mm512_loadu_ps(x);
    __m512 high = _mm512_loadu_ps(x + 16);
    const int largest = largest_magnitude(low, high);
    const float amax = as_float(largest);
    const bool finite = largest < kInfinity;
    const bool zero = !finite || amax < 1e-30F;
    const __m512 inverse = _mm512_set1_ps(zero ? 0.F : 127.F / amax);
    const float scale = !finite ? as_float(0x7fc00000) : zero ? 0.F : amax / 127.F;
    if (zero) low = high = _mm512_setzero_ps();  // NaN times zero would not be zero
    const __m256i values = _mm256_set_m128i(quantised(high, inverse), quantised(low, inverse));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), values);
    const Sums sums = sums_of(values);
    const int sum = sums.first + sums.last;
    const GroupMeta record = {
        scale, scale * static_cast<float>(sum), -8 * sum, -128 * sum, {-32 * sums.first, -32 * sums.last}};
    __builtin_memcpy(meta, &record, sizeof record);
  }
}

}  // namespace quire::kernels::avx512
