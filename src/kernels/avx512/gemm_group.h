// One group of 32 inputs times a few rows, in registers: exact integer dots, then the fp32 steps of rule 4.
//
// Every loop over rows, vectors and steps has a constant trip count and is unrolled, so that GCC replaces the arrays by
// scalars. Internal linkage, as everything in files of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/avx512/gemm_bits.h"
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

inline __m512 load_bf16(const std::byte* p) {
  const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 load_i8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

// The four bits of each byte that start at kFrom.
template <int kFrom>
inline __m512 load_nibbles(const std::byte* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, kFrom), _mm512_set1_epi32(15)));
}

// The packed bytes of one group of a panel, from one of its vectors of 16 columns on.
struct GroupWeights {
  const std::byte* header;   // of its super-block, if it has one
  const std::byte* weights;  // of the vector
  const std::byte* scales;   // of all 32 columns
  int vector;                // 0 or 1
};

// Where a group comes from: a panel as it lies in memory, or unpacked, one byte a weight and scales in fp32: for each
// of the two vectors [8 steps of 4 inputs][16 columns][4], then [16] s_w, [16] minimums, [2][16] factors of half a
// group and [2][16] of its minimums, as far as the layout has them.
enum class Source : bool { kPanel, kUnpacked };

constexpr int kUnpackedWeights = 16 * kGroup;
template <Layout L>
constexpr bool kSubMin = has_sub(L) && has_min(L);
template <Layout L>
constexpr int kUnpackedScales = 64 * ((has_min(L) ? 2 : 1) + (has_sub(L) ? 2 : 0) + (kSubMin<L> ? 2 : 0));

// Bytes from one vector's weights of a group to the other's.
template <Layout L, Source S>
constexpr int kVectorStep = S == Source::kPanel ? 64 : kUnpackedWeights + kUnpackedScales<L>;

// The i-th 16 fp32 behind the unpacked weights of the v-th vector.
template <Layout L>
inline __m512 unpacked_scale(const GroupWeights& w, int v, int i) {
  return _mm512_load_ps(w.weights + v * kVectorStep<L, Source::kUnpacked> + kUnpackedWeights + 64 * i);
}

// s_w of the v-th vector.
template <Layout L, Source S>
inline __m512 scale_of(const GroupWeights& w, int v) {
  const int c = 16 * (w.vector + v);
  if constexpr (S == Source::kUnpacked) return unpacked_scale<L>(w, v, 0);
  if constexpr (has_sub(L)) return load_half(w.header + 2 * c);
  if constexpr (L == Layout::kInt4Mx) return load_bf16(w.scales + 2 * c);
  if constexpr (L == Layout::kInt4TableSuper) return _mm512_mul_ps(load_half(w.header + 2 * c), load_i8(w.scales + c));
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(w.header + 2 * c), load_u8(w.scales + c));
  return load_half(w.scales + 2 * c);
}

// The minimum of the v-th vector; of a super-block its negative, as the file stores what is to be subtracted. With
// sub-blocks what their own factors multiply, a 32nd of dmin.
template <Layout L, Source S>
inline __m512 min_of(const GroupWeights& w, int v) {
  const int c = 16 * (w.vector + v);
  if constexpr (S == Source::kUnpacked) return unpacked_scale<L>(w, v, 1);
  if constexpr (has_sub(L)) return _mm512_mul_ps(load_half(w.header + 64 + 2 * c), _mm512_set1_ps(1.F / 32));
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(w.header + 64 + 2 * c), load_u8(w.scales + 32 + c));
  return load_half(w.scales + 64 + 2 * c);
}

// The factor of a half of a group with sub-blocks, of the v-th vector.
template <Layout L, Source S>
inline __m512 factor_of(const GroupWeights& w, int v, int half) {
  if constexpr (S == Source::kUnpacked) return unpacked_scale<L>(w, v, (has_min(L) ? 2 : 1) + half);
  const std::byte* fields = w.scales + 32 * half + 16 * (w.vector + v);
  if constexpr (kSubMin<L>) return load_nibbles<0>(fields);
  return load_i8(fields);
}

// The factor of its minimum.
template <Layout L, Source S>
inline __m512 min_factor_of(const GroupWeights& w, int v, int half) {
  if constexpr (S == Source::kUnpacked) return unpacked_scale<L>(w, v, 4 + half);
  return load_nibbles<4>(w.scales + 32 * half + 16 * (w.vector + v));
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

// The activations of a group that a pass reads: from its first row on, and from that one's record on.
struct GroupRows {
  const std::byte* a;
  const GroupMeta* meta;
};

// Inputs 8 kStep .. 8 kStep + 7 of a group: the first four, and the last four.
template <Layout L, int kStep>
__attribute__((always_inline)) inline void load_weights(const std::byte* p, __m512i (&w)[2]) {
  if constexpr (weight_bits(L) < 4) {
    w[0] = few_bits<L, 2 * kStep>(p);
    w[1] = few_bits<L, 2 * kStep + 1>(p);
  } else if constexpr (weight_bits(L) == 8) {
    w[0] = _mm512_load_si512(p + kStep * 256);
    w[1] = _mm512_load_si512(p + kStep * 256 + 128);
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i packed = _mm512_load_si512(p + kStep * 128);
    const __m512i shifted = _mm512_srli_epi16(packed, 4);
    if constexpr (weight_bits(L) == 4) {
      w[0] = _mm512_and_si512(packed, nibble);
      w[1] = _mm512_and_si512(shifted, nibble);
      if constexpr (has_table(L)) {
        w[0] = looked_up<L>(w[0]);
        w[1] = looked_up<L>(w[1]);
      }
    } else {
      constexpr int kMaskAndOr = 0xea;                         // (a & b) | c
      const __m512i first = high_bits<L, 2 * kStep>(p + 512);  // of their own: the intrinsic may be a macro
      const __m512i last = high_bits<L, 2 * kStep + 1>(p + 512);
      w[0] = _mm512_ternarylogic_epi32(packed, nibble, first, kMaskAndOr);
      w[1] = _mm512_ternarylogic_epi32(shifted, nibble, last, kMaskAndOr);
    }
  }
}

// Adds the products of 8 inputs, step 0..3 of a group.
template <Layout L, Source S, int kStep, int kRows, int kVectors>
__attribute__((always_inline)) inline void add_step(const GroupRows& rows, const GroupWeights& g,
                                                    __m512i (&dot)[kRows][kVectors]) {
  __m512i w[kVectors][2];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const std::byte* p = g.weights + v * kVectorStep<L, S>;
    if constexpr (S == Source::kPanel) {
      load_weights<L, kStep>(p, w[v]);
    } else {
      w[v][0] = _mm512_load_si512(p + kStep * 128);
      w[v][1] = _mm512_load_si512(p + kStep * 128 + 64);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const __m512i b = broadcast(rows.a + r * kGroup + kStep * 8 + h * 4);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) dot[r][v] = _mm512_dpbusd_epi32(dot[r][v], w[v][h], b);
    }
  }
}

// What is added to weights to multiply them unsigned. Those of 5 bits are unpacked with one whose sum a record has as
// it is: their offset of 16 would cost a multiplication for each row and group.
template <Layout L, Source S>
constexpr int kOffset = S == Source::kUnpacked && L == Layout::kInt5 ? 128 : weight_offset(L);

// The value of a dot of zero weights: it undoes their offset.
template <Layout L, Source S>
inline int32_t start_of(const GroupMeta& meta, int half) {
  constexpr int kAdded = kOffset<L, S>;
  if constexpr (kAdded == 0) return 0;
  if constexpr (has_sub(L)) return meta.minus_32_sum[half] / (32 / kAdded);
  if constexpr (kAdded == 128) return meta.minus_128_sum;
  return meta.minus_8_sum * (kAdded / 8);
}

// Steps [kFirst, kLast) of a group, a half or all of it, as floats: exact.
template <Layout L, Source S, int kFirst, int kLast, int kRows, int kVectors>
__attribute__((always_inline)) inline void dots(const GroupRows& rows, const GroupWeights& g,
                                                __m512 (&value)[kRows][kVectors]) {
  __m512i dot[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
    const __m512i start = _mm512_set1_epi32(start_of<L, S>(rows.meta[r], kFirst / 2));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) dot[r][v] = start;
  }
  if constexpr (kFirst == 0) {
    add_step<L, S, 0, kRows, kVectors>(rows, g, dot);
    add_step<L, S, 1, kRows, kVectors>(rows, g, dot);
  }
  if constexpr (kLast == 4) {
    add_step<L, S, 2, kRows, kVectors>(rows, g, dot);
    add_step<L, S, 3, kRows, kVectors>(rows, g, dot);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) value[r][v] = _mm512_cvtepi32_ps(dot[r][v]);
  }
}

// The integer part of a group. Sub: two dots of 16 inputs times their factors; all of it stays below 2^24, so fp32 is
// exact, and starting from +0 keeps the sign of zero that integers would give.
template <Layout L, Source S, int kRows, int kVectors>
__attribute__((always_inline)) inline void group_values(const GroupRows& rows, const GroupWeights& g,
                                                        __m512 (&value)[kRows][kVectors]) {
  if constexpr (!has_sub(L)) {
    dots<L, S, 0, 4, kRows, kVectors>(rows, g, value);
    return;
  }
  __m512 half[kRows][kVectors];
  dots<L, S, 0, 2, kRows, kVectors>(rows, g, half);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 factor = factor_of<L, S>(g, v, 0);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) value[r][v] = _mm512_fmadd_ps(factor, half[r][v], _mm512_setzero_ps());
  }
  dots<L, S, 2, 4, kRows, kVectors>(rows, g, half);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 factor = factor_of<L, S>(g, v, 1);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) value[r][v] = _mm512_fmadd_ps(factor, half[r][v], value[r][v]);
  }
}

// Minimums of halves: acc = fma(dmin / 32 * s_a, -32 * (factors times sums of inputs), acc). The second factor is exact
// in fp32, and its zero positive, as for group_values().
__attribute__((always_inline)) inline void add_sub_min(const GroupMeta& meta, __m512 min, const __m512 (&factor)[2],
                                                       __m512& acc) {
  const __m512 sum0 = _mm512_cvtepi32_ps(_mm512_set1_epi32(meta.minus_32_sum[0]));
  const __m512 sum1 = _mm512_cvtepi32_ps(_mm512_set1_epi32(meta.minus_32_sum[1]));
  const __m512 first = _mm512_fmadd_ps(factor[0], sum0, _mm512_setzero_ps());
  const __m512 both = _mm512_fmadd_ps(factor[1], sum1, first);
  acc = _mm512_fmadd_ps(_mm512_mul_ps(min, _mm512_set1_ps(meta.scale)), both, acc);
}

// acc = fma(s_w * s_a, integers, acc); then the minimum.
template <Layout L, Source S, int kRows, int kVectors>
__attribute__((always_inline)) inline void add_group(const GroupRows& rows, const GroupWeights& g,
                                                     __m512 (&acc)[kRows][kVectors]) {
  __m512 value[kRows][kVectors];
  group_values<L, S, kRows, kVectors>(rows, g, value);
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    const __m512 scale = scale_of<L, S>(g, v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(rows.meta[r].scale));
      acc[r][v] = _mm512_fmadd_ps(both, value[r][v], acc[r][v]);
    }
    if constexpr (kSubMin<L>) {
      const __m512 factor[2] = {min_factor_of<L, S>(g, v, 0), min_factor_of<L, S>(g, v, 1)};
      const __m512 min = min_of<L, S>(g, v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) add_sub_min(rows.meta[r], min, factor, acc[r][v]);
    } else if constexpr (has_min(L)) {
      const __m512 min = min_of<L, S>(g, v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const __m512 sum = _mm512_set1_ps(rows.meta[r].scaled_sum);
        acc[r][v] = has_super(L) ? _mm512_fnmadd_ps(min, sum, acc[r][v]) : _mm512_fmadd_ps(min, sum, acc[r][v]);
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::avx512
