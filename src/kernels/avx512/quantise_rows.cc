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

// Writes 16 values to nearest even and returns their sum.
int store_quantised(__m512 x, __m512 inverse, std::byte* q) {
  const __m512i value = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(value));
  return _mm512_reduce_add_epi32(value);
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
    const float inverse = zero ? 0.F : 127.F / amax;
    const float scale = !finite ? as_float(0x7fc00000) : zero ? 0.F : amax / 127.F;
    if (zero) low = high = _mm512_setzero_ps();  // NaN times zero would not be zero
    const int first = store_quantised(low, _mm512_set1_ps(inverse), q);
    const int second = store_quantised(high, _mm512_set1_ps(inverse), q + 16);
    const int sum = first + second;
    const GroupMeta record = {
        scale, scale * static_cast<float>(sum), -8 * sum, -128 * sum, {-32 * first, -32 * second}};
    __builtin_memcpy(meta, &record, sizeof record);
  }
}

}  // namespace quire::kernels::avx512
