// bf16 with vdpbf16ps: up to 6 rows x 64 columns. It computes fma(lower, lower', fma(upper, upper', acc)), so an upper
// and a lower half are successive inputs of one chain of rule 1: 4i and 4i + 2 of the even one, 4i + 1 and 4i + 3 of
// the odd.
#include <immintrin.h>

#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels {
namespace avx512 {
namespace {

// Activations are bf16; of each four inputs 2, 0, 3, 1 in the order of memory.
struct PairStep {
  static constexpr size_t kInputs = 2;

  template <int kOdd, int kRows>
  __attribute__((always_inline)) static void add(const TileArgs& t, size_t k, __m512 (&sums)[kRows][kVectors]) {
    constexpr __mmask32 kLower = 0x55555555;
    const std::byte* words = t.panel + k * kColumns * 2;
    __m512bh w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m512i first = _mm512_load_si512(words + v * 64);
      const __m512i second = _mm512_load_si512(words + kColumns * 4 + v * 64);
      w[v] =
          reinterpret_cast<__m512bh>(kOdd == 0 ? _mm512_mask_blend_epi16(kLower, _mm512_slli_epi32(first, 16), second)
                                               : _mm512_mask_blend_epi16(kLower, first, _mm512_srli_epi32(second, 16)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      int32_t word;
      __builtin_memcpy(&word, t.a + static_cast<size_t>(r) * t.a_pitch + k * 2 + kOdd * 4, sizeof word);
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, w[v]);
    }
  }
};

void round_row(const float* x, int k, std::byte* out) {
  // Inputs 0 1 2 3 to 2 0 3 1, in each eight bytes.
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 0, 1, 6, 7, 2, 3, 12, 13, 8, 9, 14, 15, 10, 11));
  for (int i = 0; i < k; i += kGroup) {
    _mm512_storeu_si512(out + i * 2, _mm512_shuffle_epi8(rounded_block(x + i, k - i), order));
  }
}

}  // namespace

void set_pair_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(Layout::kBF16)] = any_block_tile<PairStep>;
  kernels.round_row_bf16 = round_row;
}

}  // namespace avx512

// One vdpbf16ps in 16 lanes and its two FMAs, over words of every kind: numbers, denormals, infinities, NaN.
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
    const __m512 a_upper = _mm512_castsi512_ps(_mm512_and_si512(a, upper));
    const __m512 w_upper = _mm512_castsi512_ps(_mm512_and_si512(w, upper));
    const __m512 a_lower = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    const __m512 w_lower = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    const __m512 want = _mm512_fmadd_ps(a_lower, w_lower, _mm512_fmadd_ps(a_upper, w_upper, acc));
    const __m512 got = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(w));
    const __mmask16 nan = _mm512_cmp_ps_mask(want, want, _CMP_UNORD_Q) & _mm512_cmp_ps_mask(got, got, _CMP_UNORD_Q);
    const __mmask16 same = _mm512_cmpeq_epi32_mask(_mm512_castps_si512(want), _mm512_castps_si512(got));
    if ((same | nan) != 0xffff) return false;
  }
  return true;
}

// Sapphire Rapids starts a vdpbf16ps every other cycle, and FMAs are faster; on Zen 4 it is the other way round.
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
  const uint64_t fmas = best_time(avx512::any_block_tile<avx512::FmaStep>);
  return best_time(avx512::any_block_tile<avx512::PairStep>) < fmas;
}

}  // namespace quire::kernels
