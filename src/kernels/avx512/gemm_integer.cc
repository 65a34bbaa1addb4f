// Grouped integer weights times int8 activations with vpdpbusd: up to 6 rows x 32 columns at a time (rule 4).
//
// Sums and integer dots live in registers: every loop over rows, vectors and steps has a constant trip count and is
// unrolled, so that GCC replaces the arrays by scalars. A broadcast activation word serves both vectors of a panel;
// with one vector at a time the load ports would be the limit.
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kColumns = 32;
constexpr int kVectors = 2;
// Fewer rows are bound by memory, and there the hardware prefetcher does best alone.
constexpr int kPrefetchRows = 3;

__m512i load(const std::byte* p) { return _mm512_load_si512(p); }

__m512 load_half(const std::byte* p) { return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))); }

__m512 load_u8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

__m512 load_i8(const std::byte* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

// Four activations of one row for every column.
__m512i broadcast(const int8_t* a) {
  int32_t word;
  __builtin_memcpy(&word, a, sizeof word);
  return _mm512_set1_epi32(word);
}

// The value of a dot of zero weights: it undoes their offset.
template <Layout L>
int32_t start_of(const GroupMeta& meta) {
  if constexpr (L == Layout::kInt4) return meta.minus_8_sum;
  if constexpr (L == Layout::kInt8) return meta.minus_128_sum;
  return 0;
}

// s_w of 16 columns.
template <Layout L>
__m512 scale_of(const std::byte* header, const std::byte* scales, int v) {
  if constexpr (L == Layout::kInt8Sub) return load_half(header + 32 * v);
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(header + 32 * v), load_u8(scales + 16 * v));
  return load_half(scales + 32 * v);
}

// The minimum of 16 columns; of a super-block its negative, as the file stores what is to be subtracted.
template <Layout L>
__m512 min_of(const std::byte* header, const std::byte* scales, int v) {
  if constexpr (has_super(L)) return _mm512_mul_ps(load_half(header + 64 + 32 * v), load_u8(scales + 32 + 16 * v));
  return load_half(scales + 64 + 32 * v);
}

// Adds the products of 8 inputs, step 0..3 of a group.
template <Layout L, int kRows>
__attribute__((always_inline)) inline void add_step(const TileArgs& t, const int8_t* a, const std::byte* weights,
                                                    int step, __m512i (&dot)[kRows][kVectors]) {
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i w[kVectors][2];  // the first and the last 4 inputs
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    if constexpr (is_int4(L)) {
      const __m512i packed = load(weights + step * 128 + v * 64);
      w[v][0] = _mm512_and_si512(packed, nibble);
      w[v][1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    } else {
      w[v][0] = load(weights + step * 256 + v * 64);
      w[v][1] = load(weights + step * 256 + 128 + v * 64);
    }
  }
  if constexpr (is_int4(L) && kRows >= kPrefetchRows) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + step * 128 + t.prefetch), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(weights + step * 128 + 64 + t.prefetch), _MM_HINT_T0);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const __m512i b = broadcast(a + static_cast<size_t>(r) * t.a_stride + step * 8 + h * 4);
      dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], w[0][h], b);
      dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], w[1][h], b);
    }
  }
}

// The dots of a group as floats, exactly.
template <Layout L, int kRows>
__attribute__((always_inline)) inline void group_dots(const TileArgs& t, size_t g, const std::byte* weights,
                                                      __m512 (&value)[kRows][kVectors]) {
  const int8_t* a = static_cast<const int8_t*>(t.a) + g * kGroup;
  __m512i dot[kRows][kVectors];
  if constexpr (L != Layout::kInt8Sub) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const int32_t start = start_of<L>(t.meta[static_cast<size_t>(r) * t.meta_stride + g]);
      dot[r][0] = dot[r][1] = _mm512_set1_epi32(start);
    }
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) add_step<L, kRows>(t, a, weights, step, dot);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      value[r][0] = _mm512_cvtepi32_ps(dot[r][0]);
      value[r][1] = _mm512_cvtepi32_ps(dot[r][1]);
    }
  } else {
    // Two dots of 16 inputs with a factor each. All of it stays below 2^24, so fp32 is exact; starting from +0 keeps
    // the sign of zero that integers would give.
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) value[r][0] = value[r][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const int32_t start = t.meta[static_cast<size_t>(r) * t.meta_stride + g].minus_32_sum[half];
        dot[r][0] = dot[r][1] = _mm512_set1_epi32(start);
      }
      add_step<L, kRows>(t, a, weights, 2 * half, dot);
      add_step<L, kRows>(t, a, weights, 2 * half + 1, dot);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) {
        const __m512 factor = load_i8(weights + weight_bytes(L) + 32 * half + 16 * v);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          value[r][v] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(dot[r][v]), value[r][v]);
        }
      }
    }
  }
}

template <Layout L, int kRows>
__attribute__((noinline)) void tile(const TileArgs& args) {
  const TileArgs t = args;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  const auto first = static_cast<size_t>(t.begin / kGroup);
  const auto last = static_cast<size_t>(t.end / kGroup);
  const std::byte* p = t.panel + group_offset(L, first);
  const std::byte* header = t.panel + super_offset(L, first);

  for (size_t g = first; g < last; g++) {
    if (has_super(L) && g % kSuperGroups == 0) {
      header = p;
      p += super_bytes(L);
    }
    __m512 value[kRows][kVectors];
    group_dots<L, kRows>(t, g, p, value);
    const std::byte* scales = p + weight_bytes(L);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      const __m512 scale = scale_of<L>(header, scales, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const GroupMeta& meta = t.meta[static_cast<size_t>(r) * t.meta_stride + g];
        acc[r][v] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(meta.scale)), value[r][v], acc[r][v]);
      }
      if constexpr (has_min(L)) {
        const __m512 min = min_of<L>(header, scales, v);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          const __m512 sum = _mm512_set1_ps(t.meta[static_cast<size_t>(r) * t.meta_stride + g].scaled_sum);
          acc[r][v] = has_super(L) ? _mm512_fnmadd_ps(min, sum, acc[r][v]) : _mm512_fmadd_ps(min, sum, acc[r][v]);
        }
      }
    }
    p += group_bytes(L);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    _mm512_store_ps(t.sums + r * kColumns, acc[r][0]);
    _mm512_store_ps(t.sums + r * kColumns + 16, acc[r][1]);
  }
}

constexpr int kMostRows = 6;

template <Layout L>
void any_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[kMostRows] = {tile<L, 1>, tile<L, 2>, tile<L, 3>,
                                                    tile<L, 4>, tile<L, 5>, tile<L, 6>};
  kByRows[t.rows - 1](t);
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = any_tile<L>;
  // Two dots a sum and its factor leave room for fewer rows.
  kernels.tile_rows[static_cast<int>(L)] = L == Layout::kInt8Sub ? 4 : kMostRows;
}

}  // namespace

void set_integer_tiles(GemmKernels& kernels) {
  set_tile<Layout::kInt4>(kernels);
  set_tile<Layout::kInt4Min>(kernels);
  set_tile<Layout::kInt4Super>(kernels);
  set_tile<Layout::kInt8>(kernels);
  set_tile<Layout::kInt8Min>(kernels);
  set_tile<Layout::kInt8Super>(kernels);
  set_tile<Layout::kInt8Sub>(kernels);
}

}  // namespace quire::kernels::avx512
