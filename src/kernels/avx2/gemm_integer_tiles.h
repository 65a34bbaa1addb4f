// Grouped integer weights times int8 activations on AVX2: up to 4 rows x 16 columns at a time (rule 4).
//
// Integer dots and weights fill the 16 registers; GCC keeps the fp32 sums on the stack and touches them once per group.
// Two vectors share every broadcast: with one, and no spill at all, the load ports would be the limit.
#pragma once

#include "kernels/avx2/gemm_dots.h"
#include "kernels/avx2/gemm_tiles.h"
#include "kernels/shared/panel_spans.h"

namespace quire::kernels::avx2 {
namespace {

constexpr int kColumns = 32;

inline __m256 load_half(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256 load_u8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline __m256 load_bf16(const std::byte* p) {
  const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// The four bits of each of 8 bytes that start at kFrom.
template <int kFrom>
inline __m256 load_nibbles(const std::byte* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes, kFrom), _mm256_set1_epi32(15)));
}

inline __m256 load_i8(const std::byte* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// s_w of 8 columns from column c on.
template <Layout L>
inline __m256 scale_of(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (has_sub(L)) return load_half(header + 2 * c);
  if constexpr (L == Layout::kInt4Mx) return load_bf16(scales + 2 * c);
  if constexpr (L == Layout::kInt4TableSuper) return _mm256_mul_ps(load_half(header + 2 * c), load_i8(scales + c));
  if constexpr (has_super(L)) return _mm256_mul_ps(load_half(header + 2 * c), load_u8(scales + c));
  return load_half(scales + 2 * c);
}

// The minimum of 8 columns; of a super-block its negative, as the file stores what is to be subtracted.
template <Layout L>
inline __m256 min_of(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (has_super(L)) return _mm256_mul_ps(load_half(header + 64 + 2 * c), load_u8(scales + 32 + c));
  return load_half(scales + 64 + 2 * c);
}

// Of 8 columns, the factor of half a group.
template <Layout L>
inline __m256 factor_of(const std::byte* scales, int half, int c) {
  const std::byte* fields = scales + 32 * half + c;
  if constexpr (has_min(L)) return load_nibbles<0>(fields);
  return load_i8(fields);
}

// Minimums of halves: acc = fma(dmin / 32 * s_a, -32 * (factors times sums of inputs), acc). The second factor is exact
// in fp32, and its zero positive, as for group_values().
inline __m256 add_sub_min(const GroupMeta& meta, const std::byte* header, const std::byte* scales, int c, __m256 acc) {
  const __m256 min = _mm256_mul_ps(load_half(header + 64 + 2 * c), _mm256_set1_ps(1.F / 32));
  const __m256 sum0 = _mm256_cvtepi32_ps(_mm256_set1_epi32(meta.minus_32_sum[0]));
  const __m256 sum1 = _mm256_cvtepi32_ps(_mm256_set1_epi32(meta.minus_32_sum[1]));
  const __m256 first = _mm256_fmadd_ps(load_nibbles<4>(scales + c), sum0, _mm256_setzero_ps());
  const __m256 both = _mm256_fmadd_ps(load_nibbles<4>(scales + 32 + c), sum1, first);
  return _mm256_fmadd_ps(_mm256_mul_ps(min, _mm256_set1_ps(meta.scale)), both, acc);
}

// The dots of a group as floats, exactly. With sub-blocks two, of 16 inputs each, times their factors: all of it stays
// below 2^24, and starting from +0 keeps the sign of zero that integers would give.
template <Layout L, Source S, int kRows, int kVectors>
inline void group_values(const GroupArgs& g, const std::byte* scales, int c, __m256 (&value)[kRows][kVectors]) {
  __m256i dot[kRows][kVectors];
  if constexpr (!has_sub(L)) {
    dots<L, S, kRows, kVectors>(g, 0, 4, dot);
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
    dots<L, S, kRows, kVectors>(g, 2 * half, 2 * half + 2, dot);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256 factor = factor_of<L>(scales, half, c + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        value[r][v] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(dot[r][v]), value[r][v]);
      }
    }
  }
}

constexpr size_t kUnpackedGroup = size_t{kColumns} * kGroup;

// What a tile's passes read and write.
struct Operands {
  int rows;
  const std::byte* a;
  const std::byte* panel;
  float* sums;
  const PanelTileArgs* unpacked = nullptr;  // if the source is that
};

// Memory gives more when lines are asked for so many bytes ahead than the hardware prefetcher asks for.
constexpr size_t kAhead = 4096;

inline void prefetch(const std::byte* p, size_t size) {
  for (size_t i = 0; i < size; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T0);
}

// What the first of a group's passes asks for.
template <Layout L, Source S>
inline void fetch(const Operands& t, size_t g, const std::byte* packed, const std::byte* a) {
  if constexpr (S == Source::kUnpacked) {
    const PanelTileArgs& u = *t.unpacked;
    prefetch(a + u.next_a, static_cast<size_t>(t.rows) * kGroupRowBytes);
    prefetch(u.fetch + (g - u.first) * u.fetch_bytes, u.fetch_bytes);
  } else {
    prefetch(packed + kAhead, group_bytes(L));
  }
}

// What one pass computes: rows from `row` on and columns from `column` on.
struct Pass {
  int row;
  int column;
  Span span;
};

template <Layout L, Source S, int kRows, int kVectors>
__attribute__((noinline)) void run_pass(const Operands& t, const Pass& pass) {
  const int c = pass.column;
  float* sums = t.sums + pass.row * kColumns + c;
  __m256 acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      acc[r][v] = pass.span.resume ? _mm256_load_ps(sums + r * kColumns + 8 * v) : _mm256_setzero_ps();
    }
  }
  const auto rows = static_cast<size_t>(t.rows);
  const auto row = static_cast<size_t>(pass.row);
  for (size_t g = pass.span.first; g < pass.span.last; g++) {
    const std::byte* header = t.panel + super_offset(L, g);
    const std::byte* packed = t.panel + weights_offset(L, g);
    const std::byte* scales = packed + weight_bytes(L);
    const std::byte* weights =
        S == Source::kPanel ? packed : t.unpacked->weights + (g - t.unpacked->first) * kUnpackedGroup;
    const std::byte* a = t.a + g * rows * kGroupRowBytes;
    if (pass.row == 0 && c == 0) fetch<L, S>(t, g, packed, a);
    const GroupArgs group{a + row * kGroup, a + rows * kGroup + row * sizeof(GroupMeta), weights + 4 * c};
    __m256 value[kRows][kVectors];
    group_values<L, S, kRows, kVectors>(group, scales, c, value);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) {
      const __m256 scale = scale_of<L>(header, scales, c + 8 * v);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; r++) {
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(group.record(r).scale));
        acc[r][v] = _mm256_fmadd_ps(both, value[r][v], acc[r][v]);
      }
      if constexpr (has_sub(L) && has_min(L)) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; r++) acc[r][v] = add_sub_min(group.record(r), header, scales, c + 8 * v, acc[r][v]);
      } else if constexpr (has_min(L)) {
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
template <Layout L, Source S, int kRows>
void run_rows(const Operands& t, int row, const Span& span) {
  constexpr int kVectors = kRows == 1 ? 4 : 2;
  for (int c = 0; c < kColumns; c += 8 * kVectors) run_pass<L, S, kRows, kVectors>(t, {row, c, span});
}

// Passes take turns on blocks of groups, about 20 KB, that stay in the first-level cache.
template <Layout L, Source S>
void run(const Operands& t, const Span& span) {
  using Rows = void (*)(const Operands&, int row, const Span&);
  constexpr Rows kByRows[] = {run_rows<L, S, 1>, run_rows<L, S, 2>, run_rows<L, S, 3>, run_rows<L, S, 4>};
  constexpr size_t kBlock = weight_bits(L) <= 4 && S == Source::kPanel ? 32 : 16;
  const int parts = (t.rows + 3) / 4;
  for (size_t g = span.first; g < span.last; g += kBlock) {
    const Span block{g, g + kBlock < span.last ? g + kBlock : span.last, span.resume || g > span.first};
    for (int i = 0; i < parts; i++) {
      const int row = t.rows * i / parts;
      kByRows[t.rows * (i + 1) / parts - row - 1](t, row, block);
    }
  }
}

template <Layout L>
void tile(const TileArgs& t) {
  run<L, Source::kPanel>({t.rows, t.a, t.panel, t.sums},
                         {static_cast<size_t>(t.begin / kGroup), static_cast<size_t>(t.end / kGroup), false});
}

template <Layout L>
void unpacked_tile(const PanelTileArgs& t) {
  for_each_span(t, kColumns, [&](float* sums, const Span& span) {
    run<L, Source::kUnpacked>({t.rows, t.a, t.panel, sums, &t}, span);
  });
}

inline void store(std::byte* p, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }

// As stored, with weight_offset(): [8 steps of 4 inputs][32 columns][4].
template <Layout L>
void unpack(const UnpackArgs& u) {
  std::byte* out = u.out;
  for (size_t g = u.first; g < u.last; g++, out += kUnpackedGroup) {
    const std::byte* weights = u.panel + weights_offset(L, g);
    for (int c = 0; c < 128; c += 32) {
      __m256i bits = first_bits<L, Source::kPanel>(weights + c, 0);
      for (int step = 0; step < 4; step++) {
        if (step == 2 && kPairs<L, Source::kPanel>) bits = first_bits<L, Source::kPanel>(weights + c, step);
        __m256i low;
        __m256i high;
        load_step<L, Source::kPanel>(weights + c, step, bits, low, high);
        store(out + c + step * 256, low);
        store(out + c + step * 256 + 128, high);
      }
    }
  }
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = tile<L>;
}

inline void set_tiles(GemmKernels& kernels) {
  set_tile<Layout::kInt2Sub>(kernels);
  set_tile<Layout::kInt3Sub>(kernels);
  set_tile<Layout::kInt4>(kernels);
  set_tile<Layout::kInt4Min>(kernels);
  set_tile<Layout::kInt4Super>(kernels);
  set_tile<Layout::kInt4Table>(kernels);
  set_tile<Layout::kInt4TableSuper>(kernels);
  set_tile<Layout::kInt4Mx>(kernels);
  set_tile<Layout::kInt5>(kernels);
  set_tile<Layout::kInt5Min>(kernels);
  set_tile<Layout::kInt5Super>(kernels);
  set_tile<Layout::kInt6Sub>(kernels);
  set_tile<Layout::kInt8>(kernels);
}

template <Layout L>
void set_unpacked(PanelKernels& kernels) {
  kernels.unpack[static_cast<int>(L)] = unpack<L>;
  kernels.tile[static_cast<int>(L)] = unpacked_tile<L>;
}

inline PanelKernels unpacked_kernels() {
  PanelKernels k{};
  k.least_rows = kTileRows + 1;
  k.groups = 16;
  k.enter = [](Layout) {};
  k.leave = [] {};
  set_unpacked<Layout::kInt2Sub>(k);
  set_unpacked<Layout::kInt3Sub>(k);
  set_unpacked<Layout::kInt4Table>(k);
  set_unpacked<Layout::kInt4TableSuper>(k);
  set_unpacked<Layout::kInt4Mx>(k);
  set_unpacked<Layout::kInt5>(k);
  set_unpacked<Layout::kInt5Min>(k);
  set_unpacked<Layout::kInt5Super>(k);
  set_unpacked<Layout::kInt6Sub>(k);
  return k;
}

}  // namespace
}  // namespace quire::kernels::avx2
