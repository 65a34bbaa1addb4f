// One group of 32 inputs times a few rows, in registers: exact integer dots, then the fp32 steps of rule 4.
//
// Every loop over rows, vectors and steps has a constant trip count and is unrolled, so that GCC replaces the arrays by
// scalars. Internal linkage, as everything in files of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kColumns = 32;

inline __m512 load_half(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512 load_u8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

inline __m512 load_i8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

// The packed bytes of one group of a panel, from one of its vectors of 16 columns on.
struct GroupWeights {
  const std::byte* header;   // of its super-block, if it has one
  const std::byte* weights;  // of the vector
  const std::byte* scales;   // of all 32 columns
  int vector;                // 0 or 1
};

// s_w of the v-th vector.
template <Layout L>
inline __m512 scale_of(const GroupWeights& w, int v) {
  const int c = 16 * (w.vector + v);
  if constexpr (L == Layout::kInt8Sub) return load_half(w.header + 2 * c);
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(w.header + 2 * c), load_u8(w.scales + c));
  return load_half(w.scales + 2 * c);
}

// The minimum of the v-th vector; of a super-block its negative, as the file stores what is to be subtracted.
template <Layout L>
inline __m512 min_of(const GroupWeights& w, int v) {
  const int c = 16 * (w.vector + v);
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(w.header + 64 + 2 * c), load_u8(w.scales + 32 + c));
  return load_half(w.scales + 64 + 2 * c);
}

// Four activations of one row for every column.
inline __m512i broadcast(const std::byte* a) {
  int32_t word;
  __builtin_memcpy(&word, a, sizeof word);
  return _mm512_set1_epi32(word);
}

template <int kRows>
inline const GroupMeta& record(const std::byte* a, int r) {
  return reinterpret_cast<const GroupMeta*>(a + kRows * kGroup)[r];
}

// Inputs 8 step .. 8 step + 7 of a group: the first four, and the last four.
template <Layout L>
__attribute__((always_inline)) inline void load_weights(const std::byte* p, int step, __m512i (&w)[2]) {
  if constexpr (is_int4(L)) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i packed = _mm512_load_si512(p + step * 128);
    w[0] = _mm512_and_si512(packed, nibble);
    w[1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
  } else {
    w[0] = _mm512_load_si512(p + step * 256);
    w[1] = _mm512_load_si512(p + step * 256 + 128);
  }
}

// Adds the products of 8 inputs, step 0..3 of a group. `a` is the group's activations.
template <Layout L, int kRows, int kVectors>
__attribute__((always_inline)) inline void add_step(const std::byte* a, const GroupWeights& g, int step,
                                                    __m512i (&dot)[kRows][kVectors]) {
  __m512i w[kVectors][2];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) load_weights<L>(g.weights + v * 64, step, w[v]);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const __m512i b = broadcast(a + r * kGroup + step * 8 + h * 4);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], w[v][h], b);
    }
  }
}

// The value of a dot of zero weights: it undoes their offset.
template <Layout L>
inline int32_t start_of(const GroupMeta& meta, int half) {
  if constexpr (L == Layout::kInt4) return meta.minus_8_sum;
  if constexpr (L == Layout::kInt8) return meta.minus_128_sum;
  if constexpr (L == Layout::kInt8Sub) return meta.minus_32_sum[half];
  return 0;
}

// Steps [kFirst, kLast) of a group, as floats: exact.
template <Layout L, int kFirst, int kLast, int kRows, int kVectors>
__attribute__((always_inline)) inline void dots(const std::byte* a, const GroupWeights& g,
                                                __m512 (&value)[kRows][kVectors]) {
  __m512i dot[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
    const __m512i start = _mm512_set1_epi32(start_of<L>(record<kRows>(a, r), kFirst / 2));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) dot[r][v] = start;
  }
#pragma GCC unroll 4
  for (int step = kFirst; step < kLast; step++) add_step<L, kRows, kVectors>(a, g, step, dot);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) value[r][v] = _mm512_cvtepi32_ps(dot[r][v]);
  }
}

// The integer part of a group. kInt8Sub: two dots of 16 inputs times their factors; all of it stays below 2^24, so fp32
// is exact, and starting from +0 keeps the sign of zero that integers would give.
template <Layout L, int kRows, int kVectors>
__attribute__((always_inline)) inline void group_values(const std::byte* a, const GroupWeights& g,
                                                        __m512 (&value)[kRows][kVectors]) {
  if constexpr (L != Layout::kInt8Sub) {
    dots<L, 0, 4, kRows, kVectors>(a, g, value);
    return;
  }
  __m512 half[kRows][kVectors];
  dots<L, 0, 2, kRows, kVectors>(a, g, half);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 factor = load_i8(g.scales + 16 * (g.vector + v));
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) value[r][v] = _mm512_fmadd_ps(factor, half[r][v], _mm512_setzero_ps());
  }
  dots<L, 2, 4, kRows, kVectors>(a, g, half);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 factor = load_i8(g.scales + 32 + 16 * (g.vector + v));
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) value[r][v] = _mm512_fmadd_ps(factor, half[r][v], value[r][v]);
  }
}

// acc = fma(s_w * s_a, integers, acc); then the minimum.
template <Layout L, int kRows, int kVectors>
__attribute__((always_inline)) inline void add_group(const std::byte* a, const GroupWeights& g,
                                                     __m512 (&acc)[kRows][kVectors]) {
  __m512 value[kRows][kVectors];
  group_values<L, kRows, kVectors>(a, g, value);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 scale = scale_of<L>(g, v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(record<kRows>(a, r).scale));
      acc[r][v] = _mm512_fmadd_ps(both, value[r][v], acc[r][v]);
    }
    if constexpr (has_min(L)) {
      const __m512 min = min_of<L>(g, v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const __m512 sum = _mm512_set1_ps(record<kRows>(a, r).scaled_sum);
        acc[r][v] = has_super(L) ? _mm512_fnmadd_ps(min, sum, acc[r][v]) : _mm512_fmadd_ps(min, sum, acc[r][v]);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::avx512
