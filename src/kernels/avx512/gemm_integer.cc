// Grouped integer weights times int8 activations with vpdpbusd: up to 6 rows x 32 columns at a time (rule 4).
//
// A broadcast activation word serves both vectors of a panel. Twelve rows of one vector would unpack weights for more
// rows, but a pass over every other line of a panel defeats the hardware prefetcher.
#include "kernels/avx512/gemm_tiles.h"
#include "kernels/avx512/gemm_unpack.h"
#include "kernels/shared/panel_spans.h"

namespace quire::kernels::avx512 {
namespace {

// Sub-blocks keep a value beside each dot and sum: that many rows fit the registers with both vectors of a panel, more
// take one vector at a time, in turns on blocks of about 20 KB that stay in the first-level cache.
constexpr int kSubRows = 4;
constexpr size_t kSubBlock = 16;

// Memory gives more when lines are asked for so many bytes ahead than the hardware prefetcher asks for.
constexpr size_t kAhead = 4096;

template <auto kLevel>
inline void prefetch(const std::byte* p, size_t size) {
  for (size_t i = 0; i < size; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, kLevel);
}

template <Layout L>
constexpr size_t kUnpackedGroup = 2 * kVectorStep<L, Source::kUnpacked>;

// What a tile's passes read and write.
struct Operands {
  const std::byte* a;
  const std::byte* panel;
  size_t prefetch;
  float* sums;
  const PanelTileArgs* unpacked = nullptr;  // if the source is that
};

template <Layout L, Source S, int kRows, int kVectors>
__attribute__((noinline)) void pass(const Operands& t, int vector, const Span& span) {
  float* sums = t.sums + vector * 16;
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      acc[r][v] = span.resume ? _mm512_load_ps(sums + r * kColumns + 16 * v) : _mm512_setzero_ps();
    }
  }
  const std::byte* a = t.a + span.first * kRows * kGroupRowBytes;
  const size_t ahead = vector != 0 ? 0 : t.prefetch != 0 ? t.prefetch : kAhead;
  const std::byte* p = t.panel + group_offset(L, span.first);
  const std::byte* header = t.panel + super_offset(L, span.first);
  const std::byte* unpacked = nullptr;
  if constexpr (S == Source::kUnpacked)
    unpacked = t.unpacked->weights + (span.first - t.unpacked->first) * kUnpackedGroup<L>;
  for (size_t g = span.first; g < span.last; g++) {
    if (has_super(L) && g % kSuperGroups == 0) {
      header = p;
      p += super_bytes(L);
    }
    if (S == Source::kPanel && ahead != 0) prefetch<_MM_HINT_T1>(p + ahead, group_bytes(L));
    if (S == Source::kUnpacked && vector == 0) {
      const PanelTileArgs& u = *t.unpacked;
      prefetch<_MM_HINT_T0>(a + u.next_a, kRows * kGroupRowBytes);
      prefetch<_MM_HINT_T1>(u.fetch + (g - u.first) * u.fetch_bytes, u.fetch_bytes);
    }
    const std::byte* weights = (S == Source::kPanel ? p : unpacked) + vector * kVectorStep<L, S>;
    add_group<L, S, kRows, kVectors>({a, &record<kRows>(a, 0)}, {header, weights, p + weight_bytes(L), vector}, acc);
    a += kRows * kGroupRowBytes;
    p += group_bytes(L);
    if constexpr (S == Source::kUnpacked) unpacked += kUnpackedGroup<L>;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) _mm512_store_ps(sums + r * kColumns + 16 * v, acc[r][v]);
  }
}

template <Layout L, Source S, int kRows>
void run(const Operands& t, const Span& span) {
  if constexpr (!has_sub(L) || kRows <= kSubRows) {
    pass<L, S, kRows, 2>(t, 0, span);
  } else {
    for (size_t first = span.first; first < span.last; first += kSubBlock) {
      const size_t last = first + kSubBlock < span.last ? first + kSubBlock : span.last;
      const Span block{first, last, span.resume || first > span.first};
      pass<L, S, kRows, 1>(t, 0, block);
      pass<L, S, kRows, 1>(t, 1, block);
    }
  }
}

template <Layout L, Source S>
constexpr void (*kByRows[])(const Operands&, const Span&) = {run<L, S, 1>, run<L, S, 2>, run<L, S, 3>,
                                                             run<L, S, 4>, run<L, S, 5>, run<L, S, 6>};

template <Layout L>
void tile(const TileArgs& t) {
  static_assert(sizeof(kByRows<L, Source::kPanel>) / sizeof(kByRows<L, Source::kPanel>[0]) == kTileRows);
  kByRows<L, Source::kPanel>[t.rows - 1](
      {t.a, t.panel, t.prefetch, t.sums},
      {static_cast<size_t>(t.begin / kGroup), static_cast<size_t>(t.end / kGroup), false});
}

template <Layout L>
void unpacked_tile(const PanelTileArgs& t) {
  for_each_span(t, kColumns, [&](float* sums, const Span& span) {
    kByRows<L, Source::kUnpacked>[t.rows - 1]({t.a, t.panel, 0, sums, &t}, span);
  });
}

template <Layout L>
void unpack(const UnpackArgs& u) {
  const std::byte* header = u.panel + super_offset(L, u.first);
  std::byte* out = u.out;
  for (size_t g = u.first; g < u.last; g++) {
    if (has_super(L) && g % kSuperGroups == 0) header = u.panel + super_offset(L, g);
    const std::byte* weights = u.panel + weights_offset(L, g);
    for (int v = 0; v < 2; v++, out += kVectorStep<L, Source::kUnpacked>) {
      unpack_vector<L, kOffset<L, Source::kUnpacked>>(weights + v * 64, out);
      const GroupWeights from{header, weights, weights + weight_bytes(L), v};
      std::byte* scales = out + kUnpackedWeights;
      _mm512_store_ps(scales, scale_of<L, Source::kPanel>(from, 0));
      if constexpr (has_min(L)) _mm512_store_ps(scales += 64, min_of<L, Source::kPanel>(from, 0));
      if constexpr (has_sub(L)) {
        _mm512_store_ps(scales += 64, factor_of<L, Source::kPanel>(from, 0, 0));
        _mm512_store_ps(scales += 64, factor_of<L, Source::kPanel>(from, 0, 1));
      }
      if constexpr (kSubMin<L>) {
        _mm512_store_ps(scales += 64, min_factor_of<L, Source::kPanel>(from, 0, 0));
        _mm512_store_ps(scales += 64, min_factor_of<L, Source::kPanel>(from, 0, 1));
      }
    }
  }
}

template <Layout L>
void set_tile(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(L)] = tile<L>;
}

template <Layout L>
void set_unpacked(PanelKernels& kernels) {
  kernels.unpack[static_cast<int>(L)] = unpack<L>;
  kernels.tile[static_cast<int>(L)] = unpacked_tile<L>;
}

}  // namespace

void set_integer_tiles(GemmKernels& kernels) {
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

}  // namespace quire::kernels::avx512

namespace quire::kernels {

const PanelKernels& unpacked_kernels_avx512() {
  static const PanelKernels kernels = [] {
    PanelKernels k{};
    k.least_rows = kTileRows + 1;
    k.groups = 16;  // some 22 KB, which stay in the first-level cache
    k.enter = [](Layout) {};
    k.leave = [] {};
    avx512::set_unpacked<Layout::kInt2Sub>(k);
    avx512::set_unpacked<Layout::kInt3Sub>(k);
    avx512::set_unpacked<Layout::kInt4>(k);
    avx512::set_unpacked<Layout::kInt4Min>(k);
    avx512::set_unpacked<Layout::kInt4Super>(k);
    avx512::set_unpacked<Layout::kInt4Table>(k);
    avx512::set_unpacked<Layout::kInt4TableSuper>(k);
    avx512::set_unpacked<Layout::kInt4Mx>(k);
    avx512::set_unpacked<Layout::kInt5>(k);
    avx512::set_unpacked<Layout::kInt5Min>(k);
    avx512::set_unpacked<Layout::kInt5Super>(k);
    avx512::set_unpacked<Layout::kInt6Sub>(k);
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
