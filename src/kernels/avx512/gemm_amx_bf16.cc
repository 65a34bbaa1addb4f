// bf16 weights times tiles of up to 16 rows with AMX (rule 1). A tdpbf16ps over 32 inputs adds up the even ones and the
// odd ones, each in a chain of FMAs from +0, and then adds their sum to the accumulator: one block of the rule.
//
// Tile registers 0-3 hold sums, 4 and 5 activations, 6 and 7 weights. Two tiles of rows meet two times 16 columns, so
// that each register that is loaded serves two products. To load one from the second-level cache takes longer than a
// product, and so does a sum that is stored and loaded again: as many blocks are multiplied at a time as the first
// level holds weights of, beside the activations that pass by.
#include <immintrin.h>

#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"
#include "kernels/avx512/tile_config.h"

namespace quire::kernels {
namespace avx512 {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPairBytes = kColumns * 4;      // of weights: two inputs of all columns
constexpr size_t kChunk = 6;                     // blocks at a time, at most
constexpr size_t kFetchAhead = 2 * kBlockBytes;  // of weights that one tile alone reads
constexpr int kHalf = kColumns / 2;
constexpr int kPairRows = 2 * kWideRows;
constexpr size_t kSumSize = size_t{kPairRows} * kHalf;

// The compiler is not told that tiles are stored to memory: what is read of them must not be read before.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// Blocks of weights, and of one tile of rows or two.
struct Blocks {
  size_t count;
  const std::byte* a;
  size_t a_step;  // to the next block
  size_t a_pair;  // to the second tile
  const std::byte* w;
};

// Where the sums of registers 0-3 lie.
struct Sums {
  float* at[4];
  size_t row_bytes;

  void load() const {
    _tile_loadd(0, at[0], row_bytes);
    _tile_loadd(1, at[1], row_bytes);
    _tile_loadd(2, at[2], row_bytes);
    _tile_loadd(3, at[3], row_bytes);
  }
  void store() const {
    _tile_stored(0, at[0], row_bytes);
    _tile_stored(1, at[1], row_bytes);
    _tile_stored(2, at[2], row_bytes);
    _tile_stored(3, at[3], row_bytes);
  }
};

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// What is fetched while others are multiplied, beside each block: some weights, and the lines that `rows` rows of
// results go to.
struct Ahead {
  const std::byte* weights;
  size_t bytes;
  const float* out;  // half of the columns
  size_t out_stride;
  size_t rows;

  __attribute__((always_inline)) void step() {
    for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(weights + i, 0, 2);
    weights += bytes;
    for (size_t r = 0; r < rows; r++, out += out_stride) {
      __builtin_prefetch(out, 1, 2);
      __builtin_prefetch(out + 16, 1, 2);
    }
  }
};

// Two tiles of rows times half of the columns.
inline void multiply_pair(const Blocks& x, Ahead ahead) {
  const std::byte *a = x.a, *w = x.w;
  for (size_t i = 0; i < x.count; i++, a += x.a_step, w += kBlockBytes) {
    ahead.step();
    _tile_loadd(4, a, kLine);
    _tile_loadd(6, w, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + kLine, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + x.a_pair, kLine);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// One tile of rows times all columns.
inline void multiply_tile(const Blocks& x, Ahead ahead) {
  const std::byte *a = x.a, *w = x.w;
  for (size_t i = 0; i < x.count; i++, a += x.a_step, w += kBlockBytes) {
    ahead.step();
    _tile_loadd(4, a, kLine);
    _tile_loadd(6, w, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + kLine, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, w + 2 * kLine, kPairBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, w + 3 * kLine, kPairBytes);
    _tile_dpbf16ps(3, 4, 7);
  }
}

// Blocks [begin, begin + count), all of one slice.
struct Chunk {
  size_t begin;
  size_t count;
  size_t slice;
  bool first;  // of the slice
  bool last;   // of all
};

// One panel times all its rows, two tiles of them at a time.
class Product {
 public:
  explicit Product(const WidePanelArgs& t)
      : t_(t),
        slices_(static_cast<size_t>(t.out.slices)),
        plain_(t.out.slices == 1 && t.out.columns == kColumns && t.out.addend == nullptr && t.out.bias == nullptr &&
               t.out.residual == nullptr && t.out.mix_weights == nullptr),
        out_rows_((kPairRows + t.blocks - 1) / t.blocks) {}

  // A tile alone waits for memory, which it reads once from the first block to the last.
  void single() {
    const size_t blocks = t_.blocks / slices_;
    for (size_t slice = 0; slice < slices_; slice++) {
      const Chunk c{slice * blocks, blocks, slice, true, true};
      const Blocks x = blocks_of(c, 0, 0);
      tile(c, 0, x, {x.w + kFetchAhead, kBlockBytes, nullptr, 0, 0});
    }
    finish_tile(0);
  }

  void several() {
    const size_t blocks = t_.blocks / slices_, parts = (blocks + kChunk - 1) / kChunk;
    for (size_t slice = 0; slice < slices_; slice++) {
      for (size_t part = 0; part < parts; part++) {
        const size_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
        const bool last = part + 1 == parts && slice + 1 == slices_;
        run({slice * blocks + begin, end - begin, slice, part == 0, last});
      }
    }
  }

 private:
  void run(const Chunk& c) {
    // What comes next is fetched bit by bit: all at once would keep memory busy for a short while only.
    const int tiles = (t_.rows + kWideRows - 1) / kWideRows;
    const std::byte* next = c.last ? t_.next : t_.panel + (c.begin + c.count) * kBlockBytes;
    const size_t share = (kBlockBytes / static_cast<size_t>(tiles) + kLine - 1) / kLine * kLine;
    const size_t bytes = next == nullptr ? 0 : share;
    const int pairs_end = tiles / 2 * kPairRows;
    for (int row = 0; row < pairs_end; row += kPairRows) {
      for (int half = 0; half < 2; half++) {
        pair(c, row, half, ahead(c, row, half, next, bytes));
        if (next != nullptr) next += bytes * c.count;
        if (c.last) finish_half(row, half);
      }
    }
    if (pairs_end >= t_.rows) return;
    tile(c, pairs_end, blocks_of(c, pairs_end, 0), ahead(c, pairs_end, 0, next, bytes));
    if (c.last) finish_tile(pairs_end);
  }

  void pair(const Chunk& c, int row, int half, const Ahead& ahead) {
    float* own = sums(row, half, c.slice);
    const Sums kept{{own, own + 16, own + kWideRows * kHalf, own + kWideRows * kHalf + 16}, kHalf * sizeof(float)};
    c.first ? clear_sums() : kept.load();
    multiply_pair(blocks_of(c, row, half), ahead);
    if (!c.last || !plain(row, kPairRows)) return kept.store();
    float* out = t_.out.out + static_cast<size_t>(row) * t_.out.out_stride + half * kHalf;
    float* more = out + kWideRows * t_.out.out_stride;
    Sums{{out, out + 16, more, more + 16}, t_.out.out_stride * sizeof(float)}.store();
  }

  void tile(const Chunk& c, int row, const Blocks& x, const Ahead& ahead) {
    float *low = sums(row, 0, c.slice), *high = sums(row, 1, c.slice);
    const Sums kept{{low, low + 16, high, high + 16}, kHalf * sizeof(float)};
    c.first ? clear_sums() : kept.load();
    multiply_tile(x, ahead);
    if (!c.last || !plain(row, t_.slots)) return kept.store();
    float* out = t_.out.out + static_cast<size_t>(row) * t_.out.out_stride;
    Sums{{out, out + 16, out + 32, out + 48}, t_.out.out_stride * sizeof(float)}.store();
  }

  // Whether so many rows of sums are results as they are.
  bool plain(int row, int rows) const { return plain_ && row + rows <= t_.rows; }

  Blocks blocks_of(const Chunk& c, int row, int half) const {
    const size_t step = static_cast<size_t>(t_.slots) * kLine;
    return {.count = c.count,
            .a = t_.a + (static_cast<size_t>(row / kWideRows) * t_.blocks + c.begin) * step,
            .a_step = step,
            .a_pair = t_.blocks * step,
            .w = t_.panel + c.begin * kBlockBytes + static_cast<size_t>(half) * (kPairBytes / 2)};
  }

  float* sums(int row, int half, size_t slice) const {
    return t_.sums + (static_cast<size_t>(row / kPairRows * 2 + half) * slices_ + slice) * kSumSize;
  }

  Ahead ahead(const Chunk& c, int row, int half, const std::byte* weights, size_t bytes) const {
    const size_t first = c.begin * out_rows_;
    const bool any = first < kPairRows && t_.out.columns > half * kHalf && t_.out.mix_weights == nullptr;
    if (!any) return {weights, bytes, nullptr, 0, 0};
    const float* out = t_.out.out + (static_cast<size_t>(row) + first) * t_.out.out_stride + half * kHalf;
    return {weights, bytes, out, t_.out.out_stride, out_rows_};
  }

  void finish_tile(int row) const {
    if (plain(row, t_.slots)) return;
    finish_rows(row, 0);
    finish_rows(row, 1);
  }

  void finish_half(int row, int half) const {
    if (!plain(row, kPairRows)) finish_rows(row, half);
  }

  // Sums of half of the columns, of up to two tiles of rows, become outputs.
  void finish_rows(int row, int half) const {
    finish_stores();
    const auto begin = static_cast<size_t>(half * kHalf);
    const auto first = static_cast<size_t>(row);
    const auto at = [&](auto* base, size_t stride) { return base == nullptr ? base : base + first * stride + begin; };
    FinishArgs f = t_.out;
    f.sums = sums(row, half, 0);
    f.slice_stride = kSumSize;
    f.rows = t_.rows - row < kPairRows ? t_.rows - row : kPairRows;
    f.width = kHalf;
    const int columns = t_.out.columns - half * kHalf;
    if (columns <= 0) return;
    f.columns = columns < kHalf ? columns : kHalf;
    if (f.mix_weights != nullptr) {
      f.mix_weights += first;
      f.mix_rows += first;
      f.out += begin;
      return finish(f);
    }
    f.out = at(f.out, f.out_stride);
    f.addend = at(f.addend, f.addend_stride);
    f.bias = at(f.bias, 0);
    f.residual = at(f.residual, f.residual_stride);
    finish(f);
  }

  const WidePanelArgs& t_;
  size_t slices_;
  bool plain_;       // results are sums
  size_t out_rows_;  // whose lines are fetched beside a block, so that all are there at the end
};

void enter(int slots) { _tile_loadconfig(&kBf16Tiles[static_cast<size_t>(slots)]); }
void leave() { _tile_release(); }

void panel(const WidePanelArgs& t) {
  Product product(t);
  if (t.rows <= kWideRows) return product.single();
  product.several();
}

void round_row(const float* x, int k, std::byte* out, size_t step) {
  for (int i = 0; i < k; i += kGroup, out += step) _mm512_storeu_si512(out, rounded_block(x + i, k - i));
}

}  // namespace
}  // namespace avx512

const WidePanelKernels& wide_kernels_amx_bf16() {
  static constexpr WidePanelKernels kernels = {.least_rows = 4,
                                               .enter = avx512::enter,
                                               .leave = avx512::leave,
                                               .panel = avx512::panel,
                                               .round_row = avx512::round_row};
  return kernels;
}

}  // namespace quire::kernels
