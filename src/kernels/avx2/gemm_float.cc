// f32, f16 and bf16 on AVX2: fp32 chains of FMAs, up to 6 rows x 16 columns in registers, four passes a panel (rule 1).
#include <immintrin.h>

#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels::avx2 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 2;

// 8 columns of weights from column c on, at input k.
template <Layout L>
inline __m256 load_weights(const std::byte* panel, size_t k, size_t c) {
  if constexpr (L == Layout::kF32) return _mm256_load_ps(reinterpret_cast<const float*>(panel) + k * kColumns + c);
  if constexpr (L == Layout::kF16) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(panel + (k * kColumns + c) * 2)));
  }
  const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + (k / 2 * kColumns + c) * 4));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000U));  // a bf16 is the upper half of a float
  return _mm256_castsi256_ps(k % 2 == 0 ? _mm256_slli_epi32(pair, 16) : _mm256_and_si256(pair, upper));
}

template <Layout L, int kRows>
__attribute__((always_inline)) inline void add_input(const TileArgs& t, size_t k, int c,
                                                     __m256 (&acc)[kRows][kVectors]) {
  __m256 w[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) w[v] = load_weights<L>(t.panel, k, static_cast<size_t>(c + 8 * v));
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    const auto* row = reinterpret_cast<const float*>(t.a + static_cast<size_t>(r) * t.a_pitch);
    const __m256 b = _mm256_set1_ps(row[k]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm256_fmadd_ps(b, w[v], acc[r][v]);
  }
}

template <Layout L, int kRows>
void tile(const TileArgs& args) {
  const TileArgs t = args;
  for (int c = 0; c < kColumns; c += 8 * kVectors) {
    __m256 acc[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (size_t k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k += L == Layout::kF32 ? 1 : 2) {
      if constexpr (L != Layout::kF32) add_input<L, kRows>(t, k + 1, c, acc);
      add_input<L, kRows>(t, k, c, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      _mm256_store_ps(t.sums + r * kColumns + c, acc[r][0]);
      _mm256_store_ps(t.sums + r * kColumns + c + 8, acc[r][1]);
    }
  }
}

template <Layout L>
void any_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {tile<L, 1>, tile<L, 2>, tile<L, 3>, tile<L, 4>, tile<L, 5>, tile<L, 6>};
  kByRows[t.rows - 1](t);
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = any_tile<L>;
}

}  // namespace

void set_float_tiles(GemmKernels& kernels) {
  set_tile<Layout::kF32>(kernels);
  set_tile<Layout::kF16>(kernels);
  set_tile<Layout::kBF16>(kernels);
}

}  // namespace quire::kernels::avx2
