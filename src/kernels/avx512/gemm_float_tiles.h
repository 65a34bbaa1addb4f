// Up to 6 rows x 64 columns over weights of any float layout (rule 1).
//
// Internal linkage, as everything in files of one instruction set.
#pragma once

#include <immintrin.h>

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 4;
constexpr size_t kBlockBytes = size_t{kGroup} * kColumns * 2;  // of bf16 weights

template <int kRows>
__attribute__((always_inline)) inline void clear(__m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) sums[r][v] = _mm512_setzero_ps();
  }
}

template <int kRows>
__attribute__((always_inline)) inline void store(const __m512 (&sums)[kRows][kVectors], float* out) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(out + r * kColumns + v * 16, sums[r][v]);
  }
}

// Rule 1 for bf16: blocks of 32 inputs, a chain of the even ones and one of the odd ones, acc + (even + odd). A Step
// adds `kInputs` inputs of one chain: step<0> even ones, step<1> odd ones, from input `k` of the panel on. Few rows
// hold both chains in registers; more rows go over a block twice.
template <class Step, int kRows>
__attribute__((noinline)) void block_tile(const TileArgs& args) {
  const TileArgs t = args;
  constexpr size_t kStep = 2 * Step::kInputs;
  constexpr bool kBoth = kRows <= 3;
  for (int i = 0; i < kRows * kColumns; i += 16) _mm512_store_ps(t.sums + i, _mm512_setzero_ps());
  for (auto k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k += kGroup) {
    alignas(64) float even_sums[kBoth ? 16 : kRows * kColumns];
    __m512 odd[kRows][kVectors];
    clear(odd);
    __m512 even[kRows][kVectors];
    clear(even);
    for (size_t i = k; i < k + kGroup; i += kStep) {
      Step::template add<0>(t, i, even);
      if constexpr (kBoth) Step::template add<1>(t, i, odd);
    }
    if constexpr (!kBoth) {
      store(even, even_sums);
      for (size_t i = k; i < k + kGroup; i += kStep) Step::template add<1>(t, i, odd);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const int at = r * kColumns + v * 16;
        const __m512 both = _mm512_add_ps(kBoth ? even[r][v] : _mm512_load_ps(even_sums + (kBoth ? 0 : at)), odd[r][v]);
        _mm512_store_ps(t.sums + at, _mm512_add_ps(_mm512_load_ps(t.sums + at), both));
      }
    }
  }
}

template <class Step>
void any_block_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {block_tile<Step, 1>, block_tile<Step, 2>, block_tile<Step, 3>,
                                           block_tile<Step, 4>, block_tile<Step, 5>, block_tile<Step, 6>};
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kTileRows);
  kByRows[t.rows - 1](t);
}

// By FMAs, with activations in fp32.
struct FmaStep {
  static constexpr size_t kInputs = 1;

  template <int kOdd, int kRows>
  __attribute__((always_inline)) static void add(const TileArgs& t, size_t k, __m512 (&sums)[kRows][kVectors]) {
    const std::byte* words = t.panel + k * kColumns * 2;
    __m512 w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m512i pair = _mm512_load_si512(words + v * 64);
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));  // a bf16 is the upper half of a float
      w[v] = _mm512_castsi512_ps(kOdd == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, upper));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const auto* row = reinterpret_cast<const float*>(t.a + static_cast<size_t>(r) * t.a_pitch);
      const __m512 b = _mm512_set1_ps(row[k + kOdd]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = _mm512_fmadd_ps(b, w[v], sums[r][v]);
    }
  }
};

inline __mmask16 first_lanes(int count) {
  return count >= 16 ? __mmask16{0xffff} : count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << count) - 1);
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

// 32 floats from x on, of which `count` are left, rounded to bf16 in the order of memory; zeros behind them.
inline __m512i rounded_block(const float* x, int count) {
  const __m512i first = rounded(_mm512_maskz_loadu_ps(first_lanes(count), x));
  const __m512i second = rounded(_mm512_maskz_loadu_ps(first_lanes(count - 16), x + 16));
  const __m256i narrow[2] = {_mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16)),
                             _mm512_cvtepi32_epi16(_mm512_srli_epi32(second, 16))};
  return _mm512_inserti64x4(_mm512_castsi256_si512(narrow[0]), narrow[1], 1);
}

}  // namespace
}  // namespace quire::kernels::avx512
