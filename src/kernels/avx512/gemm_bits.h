// The upper bits of 5- and 6-bit weights. Internal linkage, as everything in files of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_layout.h"

namespace quire::kernels::avx512 {
namespace {

// The bits that start at bit kFrom of every byte, moved to bit 4; the others are in the way still.
template <int kFrom>
inline __m512i moved_to_4(__m512i bits) {
  if constexpr (kFrom < 4) return _mm512_slli_epi16(bits, 4 - kFrom);
  if constexpr (kFrom > 4) return _mm512_srli_epi16(bits, kFrom - 4);
  return bits;
}

// The upper bits of step (four weights a column) kStep of 8, at bit 4 and up.
template <Layout L, int kStep>
inline __m512i high_bits(const std::byte* high) {
  if constexpr (weight_bits(L) == 5) {
    return _mm512_and_si512(moved_to_4<kStep>(_mm512_load_si512(high)), _mm512_set1_epi8(16));
  } else {
    return _mm512_and_si512(moved_to_4<2 * (kStep % 4)>(_mm512_load_si512(high + kStep / 4 * 128)),
                            _mm512_set1_epi8(48));
  }
}

}  // namespace
}  // namespace quire::kernels::avx512
