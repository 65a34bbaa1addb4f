// f32, f16, and bf16 without vdpbf16ps: fp32 chains of FMAs, up to 6 rows x 64 columns in registers (rule 1).
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kColumns = 64;
constexpr int kVectors = 4;

// Elements of weights and activations, and how one k of 16 columns and of one row is loaded.
template <Layout L>
struct Operand;

template <>
struct Operand<Layout::kF32> {
  using Activation = float;
  static constexpr int kStep = 1;
  static __m512 weight(const std::byte* panel, size_t k, int v) {
    return _mm512_load_ps(panel + (k * kColumns + static_cast<size_t>(v) * 16) * 4);
  }
  static __m512 activation(const float* a, size_t k) { return _mm512_set1_ps(a[k]); }
};

// A bf16 is the upper half of a float.
inline __m512 widen(const uint16_t* a) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(uint32_t{*a} << 16)));
}

template <>
struct Operand<Layout::kF16> {
  using Activation = uint16_t;
  static constexpr int kStep = 2;
  static __m512 weight(const std::byte* panel, size_t k, int v) {
    const std::byte* p = panel + (k * kColumns + static_cast<size_t>(v) * 16) * 2;
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 activation(const uint16_t* a, size_t k) { return widen(a + k); }
};

template <>
struct Operand<Layout::kBF16> {
  using Activation = uint16_t;
  static constexpr int kStep = 2;
  static __m512 weight(const std::byte* panel, size_t k, int v) {
    const __m512i pair = _mm512_load_si512(panel + (k / 2 * kColumns + static_cast<size_t>(v) * 16) * 4);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    return _mm512_castsi512_ps(k % 2 == 0 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, upper));
  }
  static __m512 activation(const uint16_t* a, size_t k) { return widen(a + k); }
};

template <Layout L, int kRows>
__attribute__((always_inline)) inline void add_input(const TileArgs& t, size_t k, __m512 (&acc)[kRows][kVectors]) {
  const auto* a = static_cast<const typename Operand<L>::Activation*>(t.a);
  __m512 w[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) w[v] = Operand<L>::weight(t.panel, k, v);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    const __m512 b = Operand<L>::activation(a + static_cast<size_t>(r) * t.a_stride, k);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_fmadd_ps(b, w[v], acc[r][v]);
  }
}

template <Layout L, int kRows>
__attribute__((noinline)) void tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) acc[r][v] = _mm512_setzero_ps();
  }
  for (size_t k = static_cast<size_t>(t.begin); k < static_cast<size_t>(t.end); k += Operand<L>::kStep) {
    if constexpr (Operand<L>::kStep == 2) add_input<L, kRows>(t, k + 1, acc);
    add_input<L, kRows>(t, k, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(t.sums + r * kColumns + v * 16, acc[r][v]);
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
  kernels.tile_rows[static_cast<int>(L)] = 6;
}

}  // namespace

void set_float_tiles(GemmKernels& kernels) {
  set_tile<Layout::kF32>(kernels);
  set_tile<Layout::kF16>(kernels);
  set_tile<Layout::kBF16>(kernels);
}

}  // namespace quire::kernels::avx512
