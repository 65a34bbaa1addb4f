// Exact integer dots of rows and 8-column vectors on AVX2: with vpdpbusd where the file that includes this is compiled
// for AVX-VNNI, otherwise with vpmaddubsw.
//
// Everything has internal linkage, so that the two builds do not mix. Step loops stay loops: unrolled, GCC 12 hoists
// the loads of a whole group and spills.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx2 {
namespace {

inline __m256i load(const std::byte* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

// The rows of activations and the columns of weights that a group's dots read.
struct GroupArgs {
  const std::byte* a;        // the first row's 32 values
  const std::byte* meta;     // its record
  const std::byte* weights;  // of the group, from the first column on

  const std::byte* inputs(int r) const { return a + r * kGroup; }
  const GroupMeta& record(int r) const { return reinterpret_cast<const GroupMeta*>(meta)[r]; }
};

// Four activations of one row for every column.
inline __m256i broadcast(const std::byte* a) {
  int32_t word;
  __builtin_memcpy(&word, a, sizeof word);
  return _mm256_set1_epi32(word);
}

#if defined(__AVXVNNI__)

// Steps of 8 inputs, [first, last) of a group's four, added to `dot`.
template <Layout L, int kRows, int kVectors>
inline void add_steps(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
  const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 1
  for (int step = first; step < last; step++) {
    const std::byte* p = g.weights + static_cast<size_t>(step) * weight_bytes(L) / 4;
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      low[v] = load(p + v * 32);
      if constexpr (is_int4(L)) {
        high[v] = _mm256_and_si256(_mm256_srli_epi16(low[v], 4), nibble);
        low[v] = _mm256_and_si256(low[v], nibble);
      } else {
        high[v] = load(p + 128 + v * 32);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      const std::byte* a = g.inputs(r) + step * 8;
      const __m256i b0 = broadcast(a);
      const __m256i b1 = broadcast(a + 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        dot[r][v] = _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(dot[r][v], low[v], b0), high[v], b1);
      }
    }
  }
}

template <Layout L>
inline int32_t start_of(const GroupMeta& meta, int half) {
  if constexpr (L == Layout::kInt4) return meta.minus_8_sum;
  if constexpr (L == Layout::kInt8) return meta.minus_128_sum;
  if constexpr (L == Layout::kInt8Sub) return meta.minus_32_sum[half];
  return 0;
}

template <Layout L, int kRows, int kVectors>
inline void dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const int32_t start = start_of<L>(g.record(r), first / 2);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) dot[r][v] = _mm256_set1_epi32(start);
  }
  add_steps<L, kRows, kVectors>(g, first, last, dot);
}

#else

// 4 bit: vpmaddubsw adds two products of at most 15 * 127 in 16 bits; the sixteen of a group add up to at most 30,480
// and fit, so they are widened once.
template <int kRows, int kVectors>
inline void nibble_dots(const GroupArgs& g, __m256i (&dot)[kRows][kVectors]) {
  const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 1
  for (int step = 0; step < 4; step++) {
    const std::byte* p = g.weights + step * 128;
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256i packed = load(p + v * 32);
      low[v] = _mm256_and_si256(packed, nibble);
      high[v] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      const std::byte* a = g.inputs(r) + step * 8;
      const __m256i b0 = broadcast(a);
      const __m256i b1 = broadcast(a + 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low[v], b0), _mm256_maddubs_epi16(high[v], b1));
        dot[r][v] = _mm256_add_epi16(dot[r][v], sum);
      }
    }
  }
}

// 8 bit: two products reach 32,512 in 16 bits, so every step of 4 inputs is widened. Unsigned weights below 64 go in as
// they are. Weights of all eight bits are signed here: |w| is the unsigned operand and the activation takes w's sign;
// the other way round -128 would not negate.
template <Layout L, int kRows, int kVectors>
inline void byte_dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i offset = _mm256_set1_epi8(-128);
#pragma GCC unroll 1
  for (int step = 2 * first; step < 2 * last; step++) {
    const std::byte* p = g.weights + step * 128;
    __m256i w[kVectors];
    __m256i size[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      w[v] = load(p + v * 32);
      if constexpr (L == Layout::kInt8) w[v] = _mm256_xor_si256(w[v], offset);
      size[v] = L == Layout::kInt8 ? _mm256_abs_epi8(w[v]) : w[v];
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      const __m256i b = broadcast(g.inputs(r) + step * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const __m256i factor = L == Layout::kInt8 ? _mm256_sign_epi8(b, w[v]) : b;
        dot[r][v] = _mm256_add_epi32(dot[r][v], _mm256_madd_epi16(_mm256_maddubs_epi16(size[v], factor), ones));
      }
    }
  }
}

template <Layout L, int kRows, int kVectors>
inline void dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const GroupMeta& meta = g.record(r);
    const int32_t start = L == Layout::kInt8Sub ? meta.minus_32_sum[first / 2] : 0;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) dot[r][v] = _mm256_set1_epi32(start);
  }
  if constexpr (!is_int4(L)) {
    byte_dots<L, kRows, kVectors>(g, first, last, dot);
    return;
  }
  nibble_dots<kRows, kVectors>(g, dot);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const GroupMeta& meta = g.record(r);
    const __m256i start = _mm256_set1_epi32(L == Layout::kInt4 ? meta.minus_8_sum : 0);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      dot[r][v] = _mm256_add_epi32(start, _mm256_madd_epi16(dot[r][v], _mm256_set1_epi16(1)));
    }
  }
}

#endif

}  // namespace
}  // namespace quire::kernels::avx2
