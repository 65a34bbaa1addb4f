// Weights of 2 and 3 bits, and the upper bits of 5 and 6. Internal linkage, as everything in files of one instruction
// set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_layout.h"

namespace quire::kernels::avx512 {
namespace {

// The bits that start at bit kFrom of every byte, moved to bit kTo; the others are in the way still.
template <int kFrom, int kTo>
inline __m512i moved(__m512i bits) {
  if constexpr (kFrom < kTo) return _mm512_slli_epi16(bits, kTo - kFrom);
  if constexpr (kFrom > kTo) return _mm512_srli_epi16(bits, kFrom - kTo);
  return bits;
}

// One bit, or two, of step (four weights a column) kStep of 8, at bit kTo and up.
template <int kStep, int kTo>
inline __m512i one_bit(const std::byte* bits) {
  return _mm512_and_si512(moved<kStep, kTo>(_mm512_load_si512(bits)), _mm512_set1_epi8(1 << kTo));
}

template <int kStep, int kTo>
inline __m512i two_bits(const std::byte* bits) {
  return _mm512_and_si512(moved<2 * (kStep % 4), kTo>(_mm512_load_si512(bits + kStep / 4 * 128)),
                          _mm512_set1_epi8(3 << kTo));
}

// The upper bits of step kStep of 8, at bit 4 and up.
template <Layout L, int kStep>
inline __m512i high_bits(const std::byte* high) {
  if constexpr (weight_bits(L) == 5) return one_bit<kStep, 4>(high);
  return two_bits<kStep, 4>(high);
}

// All bits of step kStep of 8, of 2- and 3-bit weights.
template <Layout L, int kStep>
inline __m512i few_bits(const std::byte* p) {
  const __m512i low = two_bits<kStep, 0>(p);
  if constexpr (weight_bits(L) == 3) return _mm512_or_si512(low, one_bit<kStep, 2>(p + 256));
  return low;
}

// What nibbles stand for, plus weight_offset().
template <Layout L>
inline __m512i looked_up(__m512i nibbles) {
  alignas(16) int8_t table[16];
  for (int i = 0; i < 16; i++) table[i] = static_cast<int8_t>(table_of(L)[i] + weight_offset(L));
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), nibbles);
}

}  // namespace
}  // namespace quire::kernels::avx512
