// f32 and f16: fp32 chains of FMAs, up to 6 rows x 64 columns in registers; bf16 by FMAs (rule 1).
#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

// 16 columns of weights from column c on, at input k.
template <Layout L>
inline __m512 load_weights(const std::byte* panel, size_t k, size_t c) {
  const size_t at = k * kColumns + c;
  if constexpr (L == Layout::kF32) return _mm512_load_ps(panel + at * 4);
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(panel + at * 2)));
}

template <Layout L, int kRows>
__attribute__((noinline)) void chain_tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
  clear(acc);
  for (auto k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k++) {
    __m512 w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = load_weights<L>(t.panel, k, static_cast<size_t>(v) * 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const auto* row = reinterpret_cast<const float*>(t.a + static_cast<size_t>(r) * t.a_pitch);
      const __m512 b = _mm512_set1_ps(row[k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_fmadd_ps(b, w[v], acc[r][v]);
    }
  }
  store(acc, t.sums);
}

template <Layout L>
void any_chain_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {chain_tile<L, 1>, chain_tile<L, 2>, chain_tile<L, 3>,
                                           chain_tile<L, 4>, chain_tile<L, 5>, chain_tile<L, 6>};
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kTileRows);
  kByRows[t.rows - 1](t);
}

void round_row(const float* x, int k, std::byte* out) {
  for (int i = 0; i < k; i += kGroup) {
    _mm512_storeu_si512(out + i * 4, rounded(_mm512_maskz_loadu_ps(first_lanes(k - i), x + i)));
    _mm512_storeu_si512(out + i * 4 + 64, rounded(_mm512_maskz_loadu_ps(first_lanes(k - i - 16), x + i + 16)));
  }
}

}  // namespace

void set_float_tiles(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(Layout::kF32)] = any_chain_tile<Layout::kF32>;
  kernels.tile[static_cast<int>(Layout::kF16)] = any_chain_tile<Layout::kF16>;
  kernels.tile[static_cast<int>(Layout::kBF16)] = any_block_tile<FmaStep>;
  kernels.round_row = round_row;
  kernels.round_row_bf16 = round_row;
}

}  // namespace quire::kernels::avx512
