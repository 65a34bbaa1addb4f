// Grouped integer weights times int8 activations with vpdpbusd: up to 6 rows x 32 columns at a time (rule 4).
//
// A broadcast activation word serves both vectors of a panel. Twelve rows of one vector would unpack weights for more
// rows, but a pass over every other line of a panel defeats the hardware prefetcher.
#include "kernels/avx512/gemm_group.h"
#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

// kInt8Sub keeps a value beside each dot and sum: that many rows fit the registers with both vectors of a panel, more
// take one vector at a time, in turns on blocks of about 20 KB that stay in the first-level cache.
constexpr int kSubRows = 4;
constexpr size_t kSubBlock = 16;

// Fewer rows are bound by memory, and there the hardware prefetcher does best alone.
constexpr int kPrefetchRows = 3;

// Groups [first, last), continuing from the tile's sums if `resume`: storing and reloading an fp32 sum is exact.
template <Layout L, int kRows, int kVectors>
__attribute__((noinline)) void pass(const TileArgs& t, int vector, size_t first, size_t last, bool resume) {
  float* sums = t.sums + vector * 16;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      acc[r][v] = resume ? _mm512_load_ps(sums + r * kColumns + 16 * v) : _mm512_setzero_ps();
    }
  }
  const std::byte* a = t.a + first * kRows * kGroupRowBytes;
  const std::byte* p = t.panel + group_offset(L, first);
  const std::byte* header = t.panel + super_offset(L, first);
  for (size_t g = first; g < last; g++) {
    if (has_super(L) && g % kSuperGroups == 0) {
      header = p;
      p += super_bytes(L);
    }
    if (kRows >= kPrefetchRows && t.prefetch != 0) {
      for (size_t i = 0; i < group_bytes(L); i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p) + i + t.prefetch, _MM_HINT_T1);
      }
    }
    add_group<L, kRows, kVectors>(a, {header, p + vector * 64, p + weight_bytes(L), vector}, acc);
    a += kRows * kGroupRowBytes;
    p += group_bytes(L);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(sums + r * kColumns + 16 * v, acc[r][v]);
  }
}

template <Layout L, int kRows>
void tile(const TileArgs& t) {
  const auto begin = static_cast<size_t>(t.begin / kGroup);
  const auto end = static_cast<size_t>(t.end / kGroup);
  if constexpr (L != Layout::kInt8Sub || kRows <= kSubRows) {
    pass<L, kRows, 2>(t, 0, begin, end, false);
  } else {
    for (size_t first = begin; first < end; first += kSubBlock) {
      const size_t last = first + kSubBlock < end ? first + kSubBlock : end;
      pass<L, kRows, 1>(t, 0, first, last, first > begin);
      pass<L, kRows, 1>(t, 1, first, last, first > begin);
    }
  }
}

template <Layout L>
void any_tile(const TileArgs& t) {
  constexpr GemmKernels::Tile kByRows[] = {tile<L, 1>, tile<L, 2>, tile<L, 3>, tile<L, 4>, tile<L, 5>, tile<L, 6>};
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kTileRows);
  kByRows[t.rows - 1](t);
}

}  // namespace

void set_integer_tiles(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(Layout::kInt4)] = any_tile<Layout::kInt4>;
  kernels.tile[static_cast<int>(Layout::kInt4Min)] = any_tile<Layout::kInt4Min>;
  kernels.tile[static_cast<int>(Layout::kInt4Super)] = any_tile<Layout::kInt4Super>;
  kernels.tile[static_cast<int>(Layout::kInt8)] = any_tile<Layout::kInt8>;
  kernels.tile[static_cast<int>(Layout::kInt8Min)] = any_tile<Layout::kInt8Min>;
  kernels.tile[static_cast<int>(Layout::kInt8Super)] = any_tile<Layout::kInt8Super>;
  kernels.tile[static_cast<int>(Layout::kInt8Sub)] = any_tile<Layout::kInt8Sub>;
}

}  // namespace quire::kernels::avx512
