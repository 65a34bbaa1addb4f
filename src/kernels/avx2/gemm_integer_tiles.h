// Grouped integer weights times int8 activations on AVX2: up to 4 rows x 32 columns, in passes of 16 columns (rule 4).
//
// Integer dots and weights fill the 16 registers; GCC keeps the fp32 sums on the stack and touches them once per group.
// Two vectors share every broadcast: with one, and no spill at all, the load ports would be the limit.
#pragma once

#include "kernels/avx2/gemm_dots.h"
#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels::avx2 {
namespace {

constexpr int kColumns = 32;

inline __m256 load_half(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256 load_u8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline __m256 load_i8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// s_w of 8 columns from column c on.
template <Layout L>
inline __m256 scale_of(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (L == Layout::kInt8Sub) return load_half(header + 2 * c);
  if constexpr (has_super(L)) return _mm256_mul_ps(load_half(header + 2 * c), load_u8(scales + c));
  return load_half(scales + 2 * c);
}

// The minimum of 8 columns; of a super-block its negative, as the file stores what is to be subtracted.
template <Layout L>
inline __m256 min_of(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (has_super(L)) return _mm256_mul_ps(load_half(header + 64 + 2 * c), load_u8(scales + 32 + c));
  return load_half(scales + 64 + 2 * c);
}

// The dots of a group as floats, exactly. For kInt8Sub two, of 16 inputs each, times their factors: all of it stays
// below 2^24, and starting from +0 keeps the sign of zero that integers would give.
template <Layout L, int kRows, int kVectors>
inline void group_values(const GroupArgs& g, const std::byte* scales, int c, __m256 (&value)[kRows][kVectors]) {
  __m256i dot[kRows][kVectors];
  if constexpr (L != Layout::kInt8Sub) {
    dots<L, kRows, kVectors>(g, 0, 4, dot);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) value[r][v] = _mm256_cvtepi32_ps(dot[r][v]);
    }
    return;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) value[r][v] = _mm256_setzero_ps();
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    dots<L, kRows, kVectors>(g, 2 * half, 2 * half + 2, dot);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256 factor = load_i8(scales + 32 * half + c + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        value[r][v] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(dot[r][v]), value[r][v]);
      }
    }
  }
}

// Columns [c, c + 8 * kVectors) over groups [first, last). Continues from `sums` unless first is the tile's own:
// storing and reloading an fp32 sum is exact.
template <Layout L, int kRows, int kVectors>
__attribute__((noinline)) void pass(const TileArgs& t, int c, size_t first, size_t last) {
  const bool resume = first != static_cast<size_t>(t.begin / kGroup);
  __m256 acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      acc[r][v] = resume ? _mm256_load_ps(t.sums + r * kColumns + c + 8 * v) : _mm256_setzero_ps();
    }
  }
  for (size_t g = first; g < last; g++) {
    const std::byte* header = t.panel + super_offset(L, g);
    const std::byte* weights = t.panel + weights_offset(L, g);
    const std::byte* scales = weights + weight_bytes(L);
    const GroupArgs group{static_cast<const int8_t*>(t.a) + g * kGroup, t.a_stride, t.meta + g, t.meta_stride,
                          weights + 4 * c};
    __m256 value[kRows][kVectors];
    group_values<L, kRows, kVectors>(group, scales, c, value);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256 scale = scale_of<L>(header, scales, c + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        const __m256 both =
            _mm256_mul_ps(scale, _mm256_set1_ps(group.meta[static_cast<size_t>(r) * t.meta_stride].scale));
        acc[r][v] = _mm256_fmadd_ps(both, value[r][v], acc[r][v]);
      }
      if constexpr (has_min(L)) {
        const __m256 min = min_of<L>(header, scales, c + 8 * v);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; r++) {
          const __m256 sum = _mm256_set1_ps(group.meta[static_cast<size_t>(r) * t.meta_stride].scaled_sum);
          acc[r][v] = has_super(L) ? _mm256_fnmadd_ps(min, sum, acc[r][v]) : _mm256_fmadd_ps(min, sum, acc[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm256_store_ps(t.sums + r * kColumns + c + 8 * v, acc[r][v]);
  }
}

// A single row takes the 32 columns in one pass, more rows take them in two, block by block: passes take turns on about
// 20 KB that stay in the first-level cache.
template <Layout L, int kRows, int kVectors>
void tile(const TileArgs& t) {
  constexpr size_t kBlock = is_int4(L) ? 32 : 16;
  const auto last = static_cast<size_t>(t.end / kGroup);
  for (auto g = static_cast<size_t>(t.begin / kGroup); g < last; g += kBlock) {
    const size_t end = g + kBlock < last ? g + kBlock : last;
    for (int c = 0; c < kColumns; c += 8 * kVectors) pass<L, kRows, kVectors>(t, c, g, end);
  }
}

template <Layout L>
void any_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {tile<L, 1, 4>, tile<L, 2, 2>, tile<L, 3, 2>, tile<L, 4, 2>};
  kByRows[t.rows - 1](t);
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = any_tile<L>;
  kernels.tile_rows[static_cast<int>(L)] = 4;
}

inline void set_tiles(GemmKernels& kernels) {
  set_tile<Layout::kInt4>(kernels);
  set_tile<Layout::kInt4Min>(kernels);
  set_tile<Layout::kInt4Super>(kernels);
  set_tile<Layout::kInt8>(kernels);
  set_tile<Layout::kInt8Min>(kernels);
  set_tile<Layout::kInt8Super>(kernels);
  set_tile<Layout::kInt8Sub>(kernels);
}

}  // namespace
}  // namespace quire::kernels::avx2
