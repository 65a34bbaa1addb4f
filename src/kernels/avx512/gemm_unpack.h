// Weights of a group and vector as one byte each: [8 steps of 4 inputs][16 columns][4].
// Internal linkage, as everything in files of one instruction set.
#pragma once

#include "kernels/avx512/gemm_group.h"

namespace quire::kernels::avx512 {
namespace {

template <Layout L, int kAdded, int kStep>
__attribute__((always_inline)) inline void unpack_step(const std::byte* from, std::byte* to) {
  constexpr int kMore = kAdded - weight_offset(L);
  __m512i w[2];
  load_weights<L, kStep>(from, w);
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    if constexpr (kMore != 0) w[h] = _mm512_add_epi8(w[h], _mm512_set1_epi8(static_cast<char>(kMore)));
    _mm512_store_si512(to + (2 * kStep + h) * 64, w[h]);
  }
}

// The weights of a group and vector, as the value plus kAdded.
template <Layout L, int kAdded>
__attribute__((always_inline)) inline void unpack_vector(const std::byte* from, std::byte* to) {
  unpack_step<L, kAdded, 0>(from, to);
  unpack_step<L, kAdded, 1>(from, to);
  unpack_step<L, kAdded, 2>(from, to);
  unpack_step<L, kAdded, 3>(from, to);
}

}  // namespace
}  // namespace quire::kernels::avx512
