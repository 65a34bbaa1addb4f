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

// Where weights come from: a panel as it lies in memory, or unpacked to bytes in the order of 8 bits.
enum class Source : bool { kPanel, kUnpacked };

template <Layout L, Source S>
constexpr int kBits = S == Source::kUnpacked ? 8 : weight_bits(L);

// What nibbles stand for, plus weight_offset().
template <Layout L>
inline __m256i looked_up(__m256i nibbles) {
  alignas(16) int8_t table[16];
  for (int i = 0; i < 16; i++) table[i] = static_cast<int8_t>(table_of(L)[i] + weight_offset(L));
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles);
}

// 2 and 3 bits: pairs are shifted along from step to step, in `bits`.
template <Layout L>
inline void load_few_bits(const std::byte* weights, int step, __m256i& bits, __m256i& low, __m256i& high) {
  const __m256i pair = _mm256_set1_epi8(3);
  low = _mm256_and_si256(bits, pair);
  high = _mm256_and_si256(_mm256_srli_epi16(bits, 2), pair);
  bits = _mm256_srli_epi16(bits, 4);
  if constexpr (weight_bits(L) == 3) {
    const __m256i third = _mm256_srl_epi16(load(weights + 256), _mm_cvtsi32_si128(2 * step));
    const __m256i four = _mm256_set1_epi8(4);
    low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(third, 2), four));
    high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(third, 1), four));
  }
}

// Four weights of each of 8 columns, and the next four, from step `step` of 8 inputs on. 5 and 6 bits: their upper bits
// are shifted along from step to step, in `bits`; those of a byte's neighbour come in from above and are never reached.
template <Layout L, Source S>
inline void load_step(const std::byte* weights, int step, __m256i& bits, __m256i& low, __m256i& high) {
  constexpr int kWidth = kBits<L, S> - 4;
  if constexpr (kWidth < 0) return load_few_bits<L>(weights, step, bits, low, high);
  const std::byte* p = weights + static_cast<size_t>(step) * (kBits<L, S> == 8 ? 256 : 128);
  low = load(p);
  if constexpr (kBits<L, S> == 8) {
    high = load(p + 128);
    return;
  }
  const __m256i nibble = _mm256_set1_epi8(15);
  high = _mm256_and_si256(_mm256_srli_epi16(low, 4), nibble);
  low = _mm256_and_si256(low, nibble);
  if constexpr (has_table(L)) {
    low = looked_up<L>(low);
    high = looked_up<L>(high);
  }
  if constexpr (kWidth == 1 || kWidth == 2) {
    const __m256i mask = _mm256_set1_epi8(kWidth == 1 ? 16 : 48);
    low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(bits, 4), mask));
    high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16(bits, 4 - kWidth), mask));
    bits = _mm256_srli_epi16(bits, 2 * kWidth);
  }
}

// Pairs of bits are enough for two steps.
template <Layout L, Source S>
constexpr bool kPairs = kBits<L, S> == 2 || kBits<L, S> == 3 || kBits<L, S> == 6;

// What load_step() begins with at step 0, or 2 of pairs.
template <Layout L, Source S>
inline __m256i first_bits(const std::byte* weights, int step) {
  if constexpr (kBits<L, S> < 4) return load(weights + step / 2 * 128);
  if constexpr (kBits<L, S> == 5) return load(weights + 512);
  if constexpr (kBits<L, S> == 6) return load(weights + 512 + step / 2 * 128);
  return _mm256_setzero_si256();
}

// What undoes the weights' offset, where products use them unsigned.
template <Layout L>
inline int32_t start_of(const GroupMeta& meta, int half) {
  constexpr int kAdded = weight_offset(L);
  if constexpr (kAdded == 0) return 0;
  if constexpr (has_sub(L)) return meta.minus_32_sum[half] / (32 / kAdded);
  if constexpr (kAdded == 128) return meta.minus_128_sum;
  return meta.minus_8_sum * (kAdded / 8);
}

#if defined(__AVXVNNI__)

// Steps of 8 inputs, [first, last) of a group's four, added to `dot`.
template <Layout L, Source S, int kRows, int kVectors>
inline void add_steps(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
  __m256i bits[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) bits[v] = first_bits<L, S>(g.weights + v * 32, first);
#pragma GCC unroll 1
  for (int step = first; step < last; step++) {
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) load_step<L, S>(g.weights + v * 32, step, bits[v], low[v], high[v]);
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

template <Layout L, Source S, int kRows, int kVectors>
inline void dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const int32_t start = start_of<L>(g.record(r), first / 2);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) dot[r][v] = _mm256_set1_epi32(start);
  }
  add_steps<L, S, kRows, kVectors>(g, first, last, dot);
}

#else

// Weights that do not fit a product unsigned.
template <Layout L>
constexpr bool kSigned = weight_offset(L) == 128;
// Weights of 15 at most.
template <Layout L>
constexpr bool kNibbles = weight_bits(L) == 4 && !has_table(L);

// 4 bit: vpmaddubsw adds two products of at most 15 * 127 in 16 bits; the sixteen of a group add up to at most 30,480
// and fit, so they are widened once.
template <Layout L, int kRows, int kVectors>
inline void nibble_dots(const GroupArgs& g, __m256i (&dot)[kRows][kVectors]) {
  __m256i none = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int step = 0; step < 4; step++) {
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) load_step<L, Source::kPanel>(g.weights + v * 32, step, none, low[v], high[v]);
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

// Up to 6 bits: four products reach 4 * 63 * 127 = 32,004 in 16 bits, so every step of 8 inputs is
// widened.
template <Layout L, Source S, int kRows, int kVectors>
inline void wide_dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i bits[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) bits[v] = first_bits<L, S>(g.weights + v * 32, first);
#pragma GCC unroll 1
  for (int step = first; step < last; step++) {
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) load_step<L, S>(g.weights + v * 32, step, bits[v], low[v], high[v]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      const std::byte* a = g.inputs(r) + step * 8;
      const __m256i b0 = broadcast(a);
      const __m256i b1 = broadcast(a + 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low[v], b0), _mm256_maddubs_epi16(high[v], b1));
        dot[r][v] = _mm256_add_epi32(dot[r][v], _mm256_madd_epi16(sum, ones));
      }
    }
  }
}

// Products of four inputs, with all 8 bits: two reach 32,512 in 16 bits, so they are widened. Weights are signed here:
// |w| is the unsigned operand and the activation takes w's sign; the other way round -128 would not negate.
template <int kRows, int kVectors>
__attribute__((always_inline)) inline void add_signed(const GroupArgs& g, int input, const __m256i (&w)[kVectors],
                                                      __m256i (&dot)[kRows][kVectors]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i size[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) size[v] = _mm256_abs_epi8(w[v]);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const __m256i b = broadcast(g.inputs(r) + input);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256i factor = _mm256_sign_epi8(b, w[v]);
      dot[r][v] = _mm256_add_epi32(dot[r][v], _mm256_madd_epi16(_mm256_maddubs_epi16(size[v], factor), ones));
    }
  }
}

// Weights stored with an offset of 128.
template <int kRows, int kVectors>
inline void byte_dots(const GroupArgs& g, __m256i (&dot)[kRows][kVectors]) {
  const __m256i offset = _mm256_set1_epi8(-128);
#pragma GCC unroll 1
  for (int step = 0; step < 8; step++) {
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = _mm256_xor_si256(load(g.weights + step * 128 + v * 32), offset);
    add_signed<kRows, kVectors>(g, step * 4, w, dot);
  }
}

// The same of nibbles that stand for them.
template <Layout L, int kRows, int kVectors>
inline void table_dots(const GroupArgs& g, __m256i (&dot)[kRows][kVectors]) {
  const __m256i offset = _mm256_set1_epi8(-128);
  __m256i none = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int step = 0; step < 4; step++) {
    __m256i low[kVectors];
    __m256i high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      load_step<L, Source::kPanel>(g.weights + v * 32, step, none, low[v], high[v]);
      low[v] = _mm256_xor_si256(low[v], offset);
      high[v] = _mm256_xor_si256(high[v], offset);
    }
    add_signed<kRows, kVectors>(g, step * 8, low, dot);
    add_signed<kRows, kVectors>(g, step * 8 + 4, high, dot);
  }
}

template <Layout L, Source S, int kRows, int kVectors>
inline void dots(const GroupArgs& g, int first, int last, __m256i (&dot)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
    const int32_t start = kSigned<L> || kNibbles<L> ? 0 : start_of<L>(g.record(r), first / 2);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) dot[r][v] = _mm256_set1_epi32(start);
  }
  if constexpr (kSigned<L> && kBits<L, S> == 8) {
    byte_dots<kRows, kVectors>(g, dot);
  } else if constexpr (kSigned<L>) {
    table_dots<L, kRows, kVectors>(g, dot);
  } else if constexpr (!kNibbles<L>) {
    wide_dots<L, S, kRows, kVectors>(g, first, last, dot);
  } else {
    nibble_dots<L, kRows, kVectors>(g, dot);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      const __m256i start = _mm256_set1_epi32(start_of<L>(g.record(r), 0));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        dot[r][v] = _mm256_add_epi32(start, _mm256_madd_epi16(dot[r][v], _mm256_set1_epi16(1)));
      }
    }
  }
}

#endif

}  // namespace
}  // namespace quire::kernels::avx2
