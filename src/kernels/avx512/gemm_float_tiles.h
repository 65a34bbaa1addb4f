// fp32 chains of FMAs, up to 6 rows x 64 columns in registers (rule 1), over weights of any float layout.
//
// Activations are fp32, or bf16 where kNarrow. Internal linkage, as everything in files of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 4;

// 16 columns of weights from column c on, at input k.
template <Layout L>
inline __m512 load_weights(const std::byte* panel, size_t k, size_t c) {
  if constexpr (L == Layout::kF32) return _mm512_load_ps(panel + (k * kColumns + c) * 4);
  if constexpr (L == Layout::kF16) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(panel + (k * kColumns + c) * 2)));
  }
  const __m512i pair = _mm512_load_si512(panel + (k / 2 * kColumns + c) * 4);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));  // a bf16 is the upper half of a float
  return _mm512_castsi512_ps(k % 2 == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, upper));
}

template <bool kNarrow>
inline __m512 load_activation(const std::byte* row, size_t k) {
  if constexpr (!kNarrow) return _mm512_set1_ps(reinterpret_cast<const float*>(row)[k]);
  const uint32_t bits = reinterpret_cast<const uint16_t*>(row)[k];
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits << 16)));
}

template <Layout L, bool kNarrow, int kRows>
__attribute__((always_inline)) inline void add_input(const TileArgs& t, size_t k, __m512 (&acc)[kRows][kVectors]) {
  __m512 w[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) w[v] = load_weights<L>(t.panel, k, static_cast<size_t>(v) * 16);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    const __m512 b = load_activation<kNarrow>(t.a + static_cast<size_t>(r) * t.a_pitch, k);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_fmadd_ps(b, w[v], acc[r][v]);
  }
}

template <Layout L, bool kNarrow, int kRows>
__attribute__((noinline)) void float_tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_setzero_ps();
  }
  for (auto k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k += L == Layout::kF32 ? 1 : 2) {
    if constexpr (L != Layout::kF32) add_input<L, kNarrow, kRows>(t, k + 1, acc);
    add_input<L, kNarrow, kRows>(t, k, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(t.sums + r * kColumns + v * 16, acc[r][v]);
  }
}

template <Layout L, bool kNarrow>
void any_float_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {float_tile<L, kNarrow, 1>, float_tile<L, kNarrow, 2>,
                                           float_tile<L, kNarrow, 3>, float_tile<L, kNarrow, 4>,
                                           float_tile<L, kNarrow, 5>, float_tile<L, kNarrow, 6>};
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kTileRows);
  kByRows[t.rows - 1](t);
}

inline __mmask16 first_lanes(int count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1);
}

// 16 floats rounded to bf16, which is the upper half of each lane; the lower half is zero.
inline __m512i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  const __m512i value = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_and_si512(value, _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
}

}  // namespace
}  // namespace quire::kernels::avx512
