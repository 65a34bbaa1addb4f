// bf16 with vdpbf16ps: up to 6 rows x 64 columns, 24 sums, 4 weights and a broadcast in registers.
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels {
namespace avx512 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 4;

template <int kRows>
__attribute__((noinline)) void tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_setzero_ps();
  }
  const auto* a = static_cast<const uint16_t*>(t.a) + t.begin;
  const std::byte* p = t.panel + static_cast<size_t>(t.begin) * kColumns * 2;
  const std::byte* end = t.panel + static_cast<size_t>(t.end) * kColumns * 2;
  for (; p < end; p += kColumns * 4, a += 2) {
    __m512bh w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(p + v * 64));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t word;
      __builtin_memcpy(&word, a + static_cast<size_t>(r) * t.a_stride, sizeof word);
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], pair, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(t.sums + r * kColumns + v * 16, acc[r][v]);
  }
}

}  // namespace

void native_bf16_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  kByRows[t.rows - 1](t);
}

}  // namespace avx512

const GemmKernels& gemm_kernels_avx512_bf16() {
  static const GemmKernels kernels = [] {
    GemmKernels k = gemm_kernels_avx512();
    k.tile[static_cast<int>(Layout::kBF16)] = avx512::native_bf16_tile;
    k.tile_rows[static_cast<int>(Layout::kBF16)] = 6;
    return k;
  }();
  return kernels;
}

// One step of rule 1 in 16 lanes, both ways, over words of every kind: numbers, denormals, infinities, NaN.
bool vdpbf16ps_follows_rule_1() {
  uint64_t state = 1;
  const auto random = [&] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int>(state >> 32);
  };
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (int i = 0; i < 2000; i++) {
    alignas(64) int words[3][16];
    for (auto& lanes : words) {
      for (int& word : lanes) word = random();
    }
    const __m512 acc = _mm512_load_ps(words[0]);
    const __m512i a = _mm512_load_si512(words[1]);
    const __m512i w = _mm512_load_si512(words[2]);
    const __m512 a_odd = _mm512_castsi512_ps(_mm512_and_si512(a, upper));
    const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(w, upper));
    const __m512 a_even = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    const __m512 want = _mm512_fmadd_ps(a_even, w_even, _mm512_fmadd_ps(a_odd, w_odd, acc));
    const __m512 got = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
    const __mmask16 nan = _mm512_cmp_ps_mask(want, want, _CMP_UNORD_Q) & _mm512_cmp_ps_mask(got, got, _CMP_UNORD_Q);
    const __mmask16 same = _mm512_cmpeq_epi32_mask(_mm512_castps_si512(want), _mm512_castps_si512(got));
    if ((same | nan) != 0xffff) return false;
  }
  return true;
}

}  // namespace quire::kernels
