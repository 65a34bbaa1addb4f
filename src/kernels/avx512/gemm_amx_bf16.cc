// bf16 weights times up to 16 rows with AMX tiles (rule 1). A tdpbf16ps over 32 inputs adds up the even ones and the
// odd ones, each in a chain of FMAs from +0, and then adds their sum to the accumulator: one block of the rule.
//
// Tiles 0-3 hold the sums of 64 columns, 4 and 5 activations, 6 and 7 weights.
#include <immintrin.h>

#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"
#include "kernels/avx512/tile_config.h"

namespace quire::kernels {
namespace avx512 {
namespace {

constexpr size_t kRowBytes = kGroup * 2;  // of activations in a block
constexpr int kPairBytes = kColumns * 4;  // of weights: two inputs of all columns
constexpr int kSumBytes = kColumns * 4;   // of a row of sums

void enter(Layout, int rows) { _tile_loadconfig(&kBf16Tiles[static_cast<size_t>(rows)]); }
void leave() { _tile_release(); }

void load_sums(const float* sums) {
  _tile_loadd(0, sums, kSumBytes);
  _tile_loadd(1, sums + 16, kSumBytes);
  _tile_loadd(2, sums + 32, kSumBytes);
  _tile_loadd(3, sums + 48, kSumBytes);
}

void store_sums(float* sums) {
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + 16, kSumBytes);
  _tile_stored(2, sums + 32, kSumBytes);
  _tile_stored(3, sums + 48, kSumBytes);
}

void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void fetch(const PanelTileArgs& t, size_t block) {
  const std::byte* from = t.fetch + (block - t.first) * t.fetch_bytes;
  for (size_t i = 0; i < t.fetch_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from) + i, _MM_HINT_T1);
}

// Tile numbers are part of an instruction, so even and odd blocks, in turn, are two.
inline void even_block(const std::byte* a, const std::byte* w) {
  _tile_loadd(4, a, kRowBytes);
  _tile_loadd(6, w, kPairBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, w + 64, kPairBytes);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(6, w + 128, kPairBytes);
  _tile_dpbf16ps(2, 4, 6);
  _tile_loadd(7, w + 192, kPairBytes);
  _tile_dpbf16ps(3, 4, 7);
}

inline void odd_block(const std::byte* a, const std::byte* w) {
  _tile_loadd(5, a, kRowBytes);
  _tile_loadd(6, w, kPairBytes);
  _tile_dpbf16ps(0, 5, 6);
  _tile_loadd(7, w + 64, kPairBytes);
  _tile_dpbf16ps(1, 5, 7);
  _tile_loadd(6, w + 128, kPairBytes);
  _tile_dpbf16ps(2, 5, 6);
  _tile_loadd(7, w + 192, kPairBytes);
  _tile_dpbf16ps(3, 5, 7);
}

// Blocks [first, last), within one slice.
void run(const PanelTileArgs& t, size_t first, size_t last) {
  const size_t step = static_cast<size_t>(t.rows) * kRowBytes;
  const std::byte* a = t.a + first * step;
  const std::byte* w = t.panel + first * kBlockBytes;
  size_t i = first;
  for (; i + 2 <= last; i += 2, a += 2 * step, w += 2 * kBlockBytes) {
    fetch(t, i);
    even_block(a, w);
    fetch(t, i + 1);
    odd_block(a + step, w + kBlockBytes);
  }
  if (i == last) return;
  fetch(t, i);
  even_block(a, w);
}

void tile(const PanelTileArgs& t) {
  for (size_t begin = t.first; begin < t.last;) {
    const size_t slice = begin / t.slice;
    const size_t end = (slice + 1) * t.slice < t.last ? (slice + 1) * t.slice : t.last;
    float* sums = t.sums + slice * static_cast<size_t>(t.rows * kColumns);
    if (begin == slice * t.slice) {
      clear_sums();
    } else {
      load_sums(sums);
    }
    run(t, begin, end);
    store_sums(sums);
    begin = end;
  }
}

void round_row(const float* x, int k, std::byte* out, size_t step) {
  for (int i = 0; i < k; i += kGroup, out += step) _mm512_storeu_si512(out, rounded_block(x + i, k - i));
}

}  // namespace
}  // namespace avx512

const PanelKernels& wide_kernels_amx_bf16() {
  static const PanelKernels kernels = [] {
    PanelKernels k{};
    k.least_rows = 4;
    k.groups = 8;  // 32 KB of weights
    k.enter = avx512::enter;
    k.leave = avx512::leave;
    k.tile[static_cast<int>(Layout::kBF16)] = avx512::tile;
    k.round_row_bf16 = avx512::round_row;
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
