// Grouped integer weights times int8 activations on AVX2: up to 4 rows x 16 columns at a time (rule 4).
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

// What one pass computes: rows from `row` on and columns from `column` on, over groups [first, last).
struct Pass {
  int row;
  int column;
  size_t first;
  size_t last;
};

// Continues from the tile's sums unless `first` is its own: storing and reloading an fp32 sum is exact.
template <Layout L, int kRows, int kVectors>
__attribute__((noinline)) void run_pass(const TileArgs& t, const Pass& pass) {
  const bool resume = pass.first != static_cast<size_t>(t.begin / kGroup);
  const int c = pass.column;
  float* sums = t.sums + pass.row * kColumns + c;
  __m256 acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      acc[r][v] = resume ? _mm256_load_ps(sums + r * kColumns + 8 * v) : _mm256_setzero_ps();
    }
  }
  const auto rows = static_cast<size_t>(t.rows);
  const auto row = static_cast<size_t>(pass.row);
  for (size_t g = pass.first; g < pass.last; g++) {
    const std::byte* header = t.panel + super_offset(L, g);
    const std::byte* weights = t.panel + weights_offset(L, g);
    const std::byte* scales = weights + weight_bytes(L);
    const std::byte* a = t.a + g * rows * kGroupRowBytes;
    const GroupArgs group{a + row * kGroup, a + rows * kGroup + row * sizeof(GroupMeta), weights + 4 * c};
    __m256 value[kRows][kVectors];
    group_values<L, kRows, kVectors>(group, scales, c, value);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256 scale = scale_of<L>(header, scales, c + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(group.record(r).scale));
        acc[r][v] = _mm256_fmadd_ps(both, value[r][v], acc[r][v]);
      }
      if constexpr (has_min(L)) {
        const __m256 min = min_of<L>(header, scales, c + 8 * v);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; r++) {
          const __m256 sum = _mm256_set1_ps(group.record(r).scaled_sum);
          acc[r][v] = has_super(L) ? _mm256_fnmadd_ps(min, sum, acc[r][v]) : _mm256_fmadd_ps(min, sum, acc[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm256_store_ps(sums + r * kColumns + 8 * v, acc[r][v]);
  }
}

// A single row takes the 32 columns in one pass, more rows take them in two.
template <Layout L, int kRows>
void run_rows(const TileArgs& t, int row, size_t first, size_t last) {
  constexpr int kVectors = kRows == 1 ? 4 : 2;
  for (int c = 0; c < kColumns; c += 8 * kVectors) run_pass<L, kRows, kVectors>(t, {row, c, first, last});
}

// Passes take turns on blocks of groups, about 20 KB, that stay in the first-level cache.
template <Layout L>
void tile(const TileArgs& t) {
  using Rows = void (*)(const TileArgs&, int row, size_t first, size_t last);
  constexpr Rows kByRows[] = {run_rows<L, 1>, run_rows<L, 2>, run_rows<L, 3>, run_rows<L, 4>};
  constexpr size_t kBlock = is_int4(L) ? 32 : 16;
  const auto last = static_cast<size_t>(t.end / kGroup);
  const int parts = (t.rows + 3) / 4;
  for (auto g = static_cast<size_t>(t.begin / kGroup); g < last; g += kBlock) {
    const size_t end = g + kBlock < last ? g + kBlock : last;
    for (int i = 0; i < parts; i++) {
      const int row = t.rows * i / parts;
      kByRows[t.rows * (i + 1) / parts - row - 1](t, row, g, end);
    }
  }
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = tile<L>;
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
