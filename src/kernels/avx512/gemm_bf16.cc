// bf16 with vdpbf16ps: up to 6 rows x 64 columns, 24 sums, 4 weights and a broadcast in registers.
#include <immintrin.h>

#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels {
namespace avx512 {
namespace {

template <int kRows>
__attribute__((noinline)) void pair_tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_setzero_ps();
  }
  const std::byte* a = t.a + static_cast<size_t>(t.begin) * 2;
  const std::byte* p = t.panel + static_cast<size_t>(t.begin) * kColumns * 2;
  const std::byte* end = t.panel + static_cast<size_t>(t.end) * kColumns * 2;
  for (; p < end; p += kColumns * 4, a += 4) {
    __m512bh w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(p + v * 64));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t word;
      __builtin_memcpy(&word, a + static_cast<size_t>(r) * t.a_pitch, sizeof word);
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

void any_pair_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {pair_tile<1>, pair_tile<2>, pair_tile<3>,
                                           pair_tile<4>, pair_tile<5>, pair_tile<6>};
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kTileRows);
  kByRows[t.rows - 1](t);
}

void round_row(const float* x, int k, std::byte* out) {
  const int padded = k + k % 2;
  for (int i = 0; i < padded; i += 16) {
    const __m512i value = rounded(_mm512_maskz_loadu_ps(first_lanes(k - i), x + i));
    const __m256i narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32(value, 16));
    _mm256_mask_storeu_epi16(out + i * 2, first_lanes(padded - i), narrow);
  }
}

}  // namespace

void set_narrow_bf16_tiles(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(Layout::kF16)] = any_float_tile<Layout::kF16, true>;
  kernels.tile[static_cast<int>(Layout::kBF16)] = any_pair_tile;
  kernels.round_row_bf16 = round_row;
  kernels.narrow_bf16 = true;
}

}  // namespace avx512

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

// Sapphire Rapids starts a vdpbf16ps every other cycle, and two FMAs are faster; on Zen 4 it is the other way round.
// The bits are the same, so the clock may decide.
bool vdpbf16ps_is_faster() {
  constexpr int kInputs = 64;
  alignas(64) std::byte panel[kInputs * 64 * 2] = {};
  alignas(64) std::byte a[kTileRows * kInputs * 4] = {};
  alignas(64) float sums[kTileRows * 64];
  TileArgs args{};
  args.rows = kTileRows;
  args.end = kInputs;
  args.a = a;
  args.a_pitch = kInputs * 4;
  args.panel = panel;
  args.sums = sums;
  const auto best_time = [&](GemmKernels::Tile tile) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
      const uint64_t start = __rdtsc();
      tile(args);
      const uint64_t time = __rdtsc() - start;
      if (time < best) best = time;
    }
    return best;
  };
  const uint64_t fmas = best_time(avx512::any_float_tile<Layout::kBF16, false>);
  return best_time(avx512::any_pair_tile) < fmas;
}

}  // namespace quire::kernels
