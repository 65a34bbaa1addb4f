// Rows of activations to int8 with one scale per 32 (rule 4), and to bf16.
#include <immintrin.h>

#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels::avx2 {
namespace {

constexpr int kInfinity = 0x7f800000;

float as_float(int bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Magnitudes order like their bits, infinity and NaN above all.
int largest_magnitude(const __m256 (&x)[4]) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (const __m256& v : x) most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

// Writes 16 values to nearest even and returns their sum.
int store_quantised(__m256 low, __m256 high, __m256 inverse, std::byte* q) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, inverse));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(high, inverse));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), bytes);
  const __m256i sums = _mm256_add_epi32(a, b);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// Eight floats rounded to bf16.
__m256 rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kInfinity));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_blendv_epi8(up, quiet, nan), upper));
}

}  // namespace

void quantise_row(const float* x, int k, std::byte* q, std::byte* meta, size_t step) {
  for (int g = 0; g < k / kGroup; g++, x += kGroup, q += step, meta += step) {
    __m256 v[4];
    for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(x + 8 * i);
    const int largest = largest_magnitude(v);
    const float amax = as_float(largest);
    const bool finite = largest < kInfinity;
    const bool zero = !finite || amax < 1e-30F;
    const float inverse = zero ? 0.F : 127.F / amax;
    const float scale = !finite ? as_float(0x7fc00000) : zero ? 0.F : amax / 127.F;
    if (zero) {  // NaN times zero would not be zero
      for (__m256& each : v) each = _mm256_setzero_ps();
    }
    const int first = store_quantised(v[0], v[1], _mm256_set1_ps(inverse), q);
    const int second = store_quantised(v[2], v[3], _mm256_set1_ps(inverse), q + 16);
    const int sum = first + second;
    const GroupMeta record = {
        scale, scale * static_cast<float>(sum), -8 * sum, -128 * sum, {-32 * first, -32 * second}};
    __builtin_memcpy(meta, &record, sizeof record);
  }
}

void round_row(const float* x, int k, std::byte* out) {
  auto* to = reinterpret_cast<float*>(out);
  int i = 0;
  for (; i + 8 <= k; i += 8) _mm256_storeu_ps(to + i, rounded(_mm256_loadu_ps(x + i)));
  for (; i < k; i++) to[i] = _mm256_cvtss_f32(rounded(_mm256_set1_ps(x[i])));
  for (; i % kGroup != 0; i++) to[i] = 0;
}

}  // namespace quire::kernels::avx2
