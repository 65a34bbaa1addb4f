// Grouped integer weights times 16 rows of int8 activations with AMX tiles (rule 4): one tdpbssd gives the exact dots
// of a group, 16 rows x 16 columns; AVX-512 scales and adds them.
//
// Tiles 0-3 hold sums, 4 and 5 activations, 6 and 7 weights. A tile register is not renamed and a product takes some 50
// cycles, so four are under way: while group g is scaled, g + 2 is stored and g + 4 multiplied.
#include "kernels/avx512/gemm_tiles.h"
#include "kernels/avx512/gemm_unpack.h"
#include "kernels/avx512/tile_config.h"

namespace quire::kernels::avx512 {
namespace {

constexpr int kSumTiles = 4;
constexpr size_t kVectorBytes = 16 * kGroup;  // of a group's weights
constexpr size_t kGroupBytes = 2 * kVectorBytes;
constexpr size_t kSubInputs = kGroup / 2;  // that share a factor

// Products over so many inputs at a time.
constexpr TileConfig kWholeGroups = tile_config(kWideRows, kGroup);
constexpr TileConfig kHalfGroups = tile_config(kWideRows, kSubInputs);

void enter(Layout layout) { _tile_loadconfig(has_sub(layout) ? &kHalfGroups : &kWholeGroups); }
void leave() { _tile_release(); }

// Tile numbers are part of an instruction, so each of these is four.
template <int kTile>
inline void multiply(const std::byte* a, const std::byte* w) {
  if constexpr (kTile == 0) {
    _tile_zero(0);
    _tile_loadd(4, a, kGroup);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(0, 4, 6);
  } else if constexpr (kTile == 1) {
    _tile_zero(1);
    _tile_loadd(5, a, kGroup);
    _tile_loadd(7, w, 64);
    _tile_dpbssd(1, 5, 7);
  } else if constexpr (kTile == 2) {
    _tile_zero(2);
    _tile_loadd(4, a, kGroup);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(2, 4, 6);
  } else {
    _tile_zero(3);
    _tile_loadd(5, a, kGroup);
    _tile_loadd(7, w, 64);
    _tile_dpbssd(3, 5, 7);
  }
}

struct alignas(64) Dots {
  int32_t of[kSumTiles][kWideRows * 16];
};

template <int kTile>
inline void store(Dots& dots) {
  if constexpr (kTile == 0) _tile_stored(0, dots.of[0], 64);
  if constexpr (kTile == 1) _tile_stored(1, dots.of[1], 64);
  if constexpr (kTile == 2) _tile_stored(2, dots.of[2], 64);
  if constexpr (kTile == 3) _tile_stored(3, dots.of[3], 64);
}

// 16 dots as floats. Beside tiles, vcvtdq2ps would take its turns on the one port that also multiplies floats; an
// integer added to the bits of 1.5 * 2^23 and a subtraction do not, and are exact below 2^22.
inline __m512 as_floats(const int32_t* dots) {
  const __m512i bits = _mm512_set1_epi32(0x4b400000);
  return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(dots), bits)), _mm512_castsi512_ps(bits));
}

// Where a pass is: the activations of a group, and its weights and scales.
struct Cursor {
  const std::byte* a;
  GroupWeights g;
};

// The integer part of a group for one row; factors are those of sub-blocks.
template <Layout L, int kTurn>
inline __m512 group_value(const Dots& dots, int r, const __m512 (&factor)[2]) {
  if constexpr (!has_sub(L)) {
    return as_floats(dots.of[kTurn] + 16 * r);
  } else {
    const __m512 half = _mm512_fmadd_ps(factor[0], as_floats(dots.of[2 * kTurn] + 16 * r), _mm512_setzero_ps());
    return _mm512_fmadd_ps(factor[1], as_floats(dots.of[2 * kTurn + 1] + 16 * r), half);
  }
}

// acc = fma(s_w * s_a, integers, acc); then the minimum.
template <Layout L, int kRows, int kTurn>
__attribute__((always_inline)) inline void add_group(const Dots& dots, const Cursor& c, __m512 (&acc)[kRows]) {
  __m512 factor[2] = {};
  if constexpr (has_sub(L)) {
    factor[0] = factor_of<L, Source::kPanel>(c.g, 0, 0);
    factor[1] = factor_of<L, Source::kPanel>(c.g, 0, 1);
  }
  const __m512 scale = scale_of<L, Source::kPanel>(c.g, 0);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++) {
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(record<kRows>(c.a, r).scale));
    acc[r] = _mm512_fmadd_ps(both, group_value<L, kTurn>(dots, r, factor), acc[r]);
  }
  if constexpr (kSubMin<L>) {
    const __m512 of_min[2] = {min_factor_of<L, Source::kPanel>(c.g, 0, 0), min_factor_of<L, Source::kPanel>(c.g, 0, 1)};
    const __m512 min = min_of<L, Source::kPanel>(c.g, 0);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) add_sub_min(record<kRows>(c.a, r), min, of_min, acc[r]);
  } else if constexpr (has_min(L)) {
    const __m512 min = min_of<L, Source::kPanel>(c.g, 0);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) {
      const __m512 sum = _mm512_set1_ps(record<kRows>(c.a, r).scaled_sum);
      acc[r] = has_super(L) ? _mm512_fnmadd_ps(min, sum, acc[r]) : _mm512_fmadd_ps(min, sum, acc[r]);
    }
  }
}

// The operands of a pass over one vector of columns.
struct Operands {
  const std::byte* a;
  const std::byte* weights;
  size_t a_step;
  size_t groups;
};

// Multiplies group i; past the end the last one again, which is never looked at.
template <Layout L, int kTurn>
inline void multiply_group(const Operands& x, size_t i) {
  const size_t at = i < x.groups ? i : x.groups - 1;
  const std::byte* a = x.a + at * x.a_step;
  const std::byte* w = x.weights + at * kGroupBytes;
  if constexpr (has_sub(L)) {
    multiply<2 * kTurn>(a, w);
    multiply<2 * kTurn + 1>(a + kSubInputs, w + kVectorBytes / 2);
  } else {
    multiply<kTurn>(a, w);
  }
}

template <Layout L, int kTurn>
inline void store_group(Dots& dots) {
  if constexpr (has_sub(L)) {
    store<2 * kTurn>(dots);
    store<2 * kTurn + 1>(dots);
  } else {
    store<kTurn>(dots);
  }
}

// Groups whose dots fit the tiles.
template <Layout L>
constexpr int kTurns = has_sub(L) ? kSumTiles / 2 : kSumTiles;

// Scales group i, whose dots are stored; stores one that is multiplied; multiplies another in its place.
template <Layout L, int kRows, int kTurn>
__attribute__((always_inline)) inline void turn(const Operands& x, size_t i, const Cursor& c, Dots& dots,
                                                __m512 (&acc)[kRows]) {
  add_group<L, kRows, kTurn>(dots, c, acc);
  store_group<L, (kTurn + kTurns<L> / 2) % kTurns<L>>(dots);
  multiply_group<L, kTurn>(x, i + kTurns<L>);
}

// Fills the tiles, and stores the first half of them.
template <Layout L>
inline void start(const Operands& x, Dots& dots) {
  multiply_group<L, 0>(x, 0);
  multiply_group<L, 1>(x, 1);
  store_group<L, 0>(dots);
  if constexpr (kTurns<L> == kSumTiles) {
    multiply_group<L, 2>(x, 2);
    multiply_group<L, 3>(x, 3);
    store_group<L, 1>(dots);
  }
}

inline void prefetch(const std::byte* p, size_t size) {
  for (size_t i = 0; i < size; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T1);
}

// Chains from +0, or as they were stored.
template <int kRows>
__attribute__((always_inline)) inline void load_sums(const float* sums, int rows, __m512 (&acc)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++) acc[r] = r < rows ? _mm512_load_ps(sums + r * kColumns) : _mm512_setzero_ps();
}

template <int kRows>
__attribute__((always_inline)) inline void store_sums(float* sums, int rows, const __m512 (&acc)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++) {
    if (r < rows) _mm512_store_ps(sums + r * kColumns, acc[r]);
  }
}

// One vector of columns. The tiles stay busy across slices, which may be short.
template <Layout L, int kRows>
__attribute__((noinline)) void pass(const PanelTileArgs& t, int vector) {
  constexpr size_t kStep = kRows * kGroupRowBytes;
  const Operands x{t.a + t.first * kStep, t.weights + static_cast<size_t>(vector) * kVectorBytes, kStep,
                   t.last - t.first};
  Dots dots;
  start<L>(x, dots);
  float* sums = t.sums + t.first / t.slice * static_cast<size_t>(t.rows * kColumns) + vector * 16;
  size_t slice_end = t.first / t.slice * t.slice + t.slice - t.first;
  __m512 acc[kRows];
  load_sums<kRows>(sums, t.first % t.slice == 0 ? 0 : t.rows, acc);

  Cursor c{x.a, {t.panel + super_offset(L, t.first), nullptr, nullptr, vector}};
  const std::byte* p = t.panel + group_offset(L, t.first);
  const auto next = [&](size_t i) __attribute__((always_inline)) {
    if (i == slice_end) {
      store_sums<kRows>(sums, t.rows, acc);
      load_sums<kRows>(sums, 0, acc);
      sums += t.rows * kColumns;
      slice_end += t.slice;
    }
    if (has_super(L) && (t.first + i) % kSuperGroups == 0) {
      c.g.header = p;
      p += super_bytes(L);
    }
    if (vector == 0) prefetch(t.fetch + i * t.fetch_bytes, t.fetch_bytes);
    c.a = x.a + i * kStep;
    c.g.scales = p + weight_bytes(L);
    p += group_bytes(L);
  };
  for (size_t i = 0; i < x.groups; i += kTurns<L>) {
    next(i);
    turn<L, kRows, 0>(x, i, c, dots, acc);
    if (i + 1 == x.groups) break;
    next(i + 1);
    turn<L, kRows, 1>(x, i + 1, c, dots, acc);
    if constexpr (kTurns<L> == kSumTiles) {
      if (i + 2 == x.groups) break;
      next(i + 2);
      turn<L, kRows, 2>(x, i + 2, c, dots, acc);
      if (i + 3 == x.groups) break;
      next(i + 3);
      turn<L, kRows, 3>(x, i + 3, c, dots, acc);
    }
  }
  store_sums<kRows>(sums, t.rows, acc);
}

template <Layout L>
void tile(const PanelTileArgs& t) {
  const auto both = wide_slots(t.rows) == kWideRows ? pass<L, kWideRows> : pass<L, kWideRows / 2>;
  both(t, 0);
  both(t, 1);
}

template <Layout L>
void unpack(const UnpackArgs& u) {
  std::byte* out = u.out;
  for (size_t g = u.first; g < u.last; g++) {
    const std::byte* weights = u.panel + weights_offset(L, g);
    for (int v = 0; v < 2; v++, out += kVectorBytes) unpack_vector<L, 0>(weights + v * 64, out);
  }
}

template <Layout L>
void set_layout(PanelKernels& kernels) {
  kernels.unpack[static_cast<int>(L)] = unpack<L>;
  kernels.tile[static_cast<int>(L)] = tile<L>;
}

}  // namespace
}  // namespace quire::kernels::avx512

namespace quire::kernels {

const PanelKernels& wide_kernels_amx() {
  static const PanelKernels kernels = [] {
    PanelKernels k{};
    k.least_rows = 32;
    k.groups = kUnpackedBytes / avx512::kGroupBytes;
    k.enter = avx512::enter;
    k.leave = avx512::leave;
    avx512::set_layout<Layout::kInt2Sub>(k);
    avx512::set_layout<Layout::kInt3Sub>(k);
    avx512::set_layout<Layout::kInt4>(k);
    avx512::set_layout<Layout::kInt4Min>(k);
    avx512::set_layout<Layout::kInt4Super>(k);
    avx512::set_layout<Layout::kInt4Table>(k);
    avx512::set_layout<Layout::kInt4TableSuper>(k);
    avx512::set_layout<Layout::kInt4Mx>(k);
    avx512::set_layout<Layout::kInt5>(k);
    avx512::set_layout<Layout::kInt5Min>(k);
    avx512::set_layout<Layout::kInt5Super>(k);
    avx512::set_layout<Layout::kInt6Sub>(k);
    avx512::set_layout<Layout::kInt8>(k);
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
