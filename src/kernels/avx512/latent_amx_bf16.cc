// Chunks of latent attention by AMX tiles: one tdpbf16ps adds a block of 32 numbers, as rule 1 says, to 16 keys x 16
// heads of scores, or 16 heads x 16 dimensions of sums. Rows of the cache are the first operand of scores as they lie
// there; as the second operand of sums those of two neighbours are merged, word by word.
//
// Tiles 0-3 hold sums, 4 the first operand, 6 and 7 the second.
#include "kernels/avx512/latent_amx_bf16.h"

#include "kernels/avx512/math_lanes.h"
#include "kernels/avx512/tile_config.h"
#include "kernels/shared/latent_body.h"

namespace quire::kernels {
namespace {

constexpr int kBlock = kRule1Block;
constexpr int kTileRows = 16;
constexpr int kPairs = kBlock / 2;  // of a block's keys or dimensions
constexpr int kBlocks = kSoftmaxChunk / kBlock;
constexpr int kKeyTiles = kSoftmaxChunk / kTileRows;
constexpr size_t kTileWords = size_t{kPairs} * kTileRows;
constexpr size_t kLine = 64;

// The compiler is not told that tiles are loaded from memory: what was stored for them must be there before.
inline void finish_stores() { asm volatile("" ::: "memory"); }

void configure(int rows) { _tile_loadconfig(&avx512::kBf16Tiles[static_cast<size_t>(rows)]); }

// Sixteen rows of the first operand.
struct KeyTile {
  const std::byte* at;
  size_t stride;
};

// The keys of a chunk and their room: rows that do not lie as a tile wants them, then words of two neighbours, then
// queries.
class Keys {
 public:
  explicit Keys(const LatentChunkArgs& a)
      : a_(a), row_size_((a.row_dim + kBlock - 1) / kBlock * kBlock), columns_(up_to_lanes(a.rank) / kTileRows) {
    for (int& i : index_) i = -1;
    for (int i = 0; i < a.count; i++) index_[a.places[i]] = i;
    for (int b = 0; b < kBlocks; b++)
      for (int i = 0; i < kBlock; i++)
        if (index_[b * kBlock + i] >= 0) {
          blocks_[block_count_++] = b;
          break;
        }
  }

  int block_count() const { return block_count_; }
  int block(int i) const { return blocks_[i]; }
  int columns() const { return columns_; }
  int index(int place) const { return index_[place]; }
  // Of sixteen dimensions and the i-th block that has keys.
  uint32_t* words(int column, int i) const {
    return words_room() + (static_cast<size_t>(column) * kBlocks + static_cast<size_t>(i)) * kTileWords;
  }
  uint32_t* queries() const { return words_room() + kSoftmaxChunk / 2 * static_cast<size_t>(row_size_); }

  void merge_neighbours() const {
    alignas(64) uint16_t low[kBlock], high[kBlock];
    for (int i = 0; i < kBlock; i++) {
      low[i] = static_cast<uint16_t>(i / 2 + i % 2 * kBlock);
      high[i] = static_cast<uint16_t>(low[i] + kPairs);
    }
    const __m512i take_low = _mm512_load_si512(low), take_high = _mm512_load_si512(high);
    for (int i = 0; i < block_count_; i++)
      for (int pair = 0; pair < kPairs; pair++) {
        const std::byte *even = row(blocks_[i] * kBlock + 2 * pair), *odd = row(blocks_[i] * kBlock + 2 * pair + 1);
        for (int c = 0; c < columns_; c += 2) {
          const __m512i a = numbers(even, c * kTileRows), b = numbers(odd, c * kTileRows);
          _mm512_store_si512(words(c, i) + pair * kTileRows, _mm512_permutex2var_epi16(a, take_low, b));
          if (c + 1 < columns_)
            _mm512_store_si512(words(c + 1, i) + pair * kTileRows, _mm512_permutex2var_epi16(a, take_high, b));
        }
      }
  }

  // Keys [16 i, 16 i + 16). What stands in rows beyond the last means nothing.
  KeyTile tile(int i) const {
    const std::byte* const* rows = a_.rows + i * kTileRows;
    const int count = a_.count - i * kTileRows;
    if (count >= kTileRows && a_.row_dim % kBlock == 0) {
      const ptrdiff_t stride = rows[1] - rows[0];
      bool even = stride > 0;
      for (int r = 2; r < kTileRows; r++) even = even && rows[r] - rows[r - 1] == stride;
      if (even) return {rows[0], static_cast<size_t>(stride)};
    }
    auto* to =
        reinterpret_cast<uint16_t*>(a_.keys) + static_cast<size_t>(i) * kTileRows * static_cast<size_t>(row_size_);
    for (int r = 0; r < kTileRows && r < count; r++)
      for (int d = 0; d < row_size_; d += kBlock) _mm512_store_si512(to + r * row_size_ + d, numbers(rows[r], d));
    return {reinterpret_cast<const std::byte*>(to), static_cast<size_t>(row_size_) * sizeof *to};
  }

 private:
  uint32_t* words_room() const {
    return reinterpret_cast<uint32_t*>(a_.keys) + kSoftmaxChunk / 2 * static_cast<size_t>(row_size_);
  }
  const std::byte* row(int place) const { return index_[place] < 0 ? nullptr : a_.rows[index_[place]]; }
  // Of a row from dimension d on; zeros behind its end and for no row.
  __m512i numbers(const std::byte* row, int d) const {
    if (row == nullptr) return _mm512_setzero_si512();
    const int left = a_.row_dim - d;
    const __mmask32 there = left >= kBlock ? ~0U : (1U << left) - 1U;
    return _mm512_maskz_loadu_epi16(there, row + 2 * static_cast<ptrdiff_t>(d));
  }

  const LatentChunkArgs& a_;
  int row_size_;              // whole blocks
  int columns_;               // sixteens of the rank
  int index_[kSoftmaxChunk];  // of the key at a place; -1: none
  int blocks_[kBlocks];       // that have keys
  int block_count_ = 0;
};

// Rows that the next chunk reads: tiles compute while they come from memory.
class Ahead {
 public:
  explicit Ahead(const LatentChunkArgs& a)
      : row_(a.next), end_(a.next + a.next_count), bytes_(static_cast<size_t>(a.row_dim) * 2) {}

  void fetch() {
    for (int i = 0; i < kRowsAtOnce && row_ != end_; i++, row_++)
      for (size_t at = 0; at < bytes_; at += kLine) __builtin_prefetch(*row_ + at, 0, 2);
  }

 private:
  static constexpr int kRowsAtOnce = 2;
  const std::byte* const* row_;
  const std::byte* const* end_;
  size_t bytes_;
};

// ---------------------------------------------------------------- scores

// Queries of sixteen heads as words of two neighbouring dimensions.
void merge_queries(const LatentChunkArgs& a, const float* q, uint32_t* words) {
  const LaneInts upper = LaneInts::set(static_cast<int32_t>(0xffff0000U)), none = LaneInts::set(0);
  const int row_size = (a.row_dim + kBlock - 1) / kBlock * kBlock;
  for (int d = 0; d < row_size; d += 2, words += kHeadLanes) {
    const auto numbers = [&](int i) { return i < a.row_dim ? LaneInts::load(q + i * kHeadLanes) : none; };
    bit_or(shift_right<16>(numbers(d)), bit_and(numbers(d + 1), upper)).store(words);
  }
}

template <int Sum>
inline void score(const KeyTile& keys, int block) {
  _tile_loadd(4, keys.at + static_cast<size_t>(block) * kLine, keys.stride);
  if constexpr (Sum == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (Sum == 1) _tile_dpbf16ps(1, 4, 6);
  if constexpr (Sum == 2) _tile_dpbf16ps(2, 4, 6);
  if constexpr (Sum == 3) _tile_dpbf16ps(3, 4, 6);
}

// N tiles of keys.
template <int N>
void score_keys(const LatentChunkArgs& a, const KeyTile* keys, const uint32_t* queries, Ahead& ahead, float* to) {
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
  for (int block = 0; block * kBlock < a.row_dim; block++) {
    ahead.fetch();
    _tile_loadd(6, queries + static_cast<size_t>(block) * kTileWords, kLine);
    score<0>(keys[0], block);
    if constexpr (N > 1) score<1>(keys[1], block);
    if constexpr (N > 2) score<2>(keys[2], block);
    if constexpr (N > 3) score<3>(keys[3], block);
  }
  _tile_stored(0, to, kLine);
  if constexpr (N > 1) _tile_stored(1, to + kTileWords, kLine);
  if constexpr (N > 2) _tile_stored(2, to + 2 * kTileWords, kLine);
  if constexpr (N > 3) _tile_stored(3, to + 3 * kTileWords, kLine);
}

void scores(const LatentChunkArgs& a, const KeyTile* tiles, const uint32_t* queries, Ahead& ahead) {
  const int count = (a.count + kTileRows - 1) / kTileRows;
  configure(kTileRows);
  for (int i = 0; i < count;) {
    const int n = count - i >= 4 ? 4 : count - i >= 2 ? 2 : 1;
    float* to = a.weights + static_cast<size_t>(i) * kTileWords;
    if (n == 4) score_keys<4>(a, tiles + i, queries, ahead, to);
    if (n == 2) score_keys<2>(a, tiles + i, queries, ahead, to);
    if (n == 1) score_keys<1>(a, tiles + i, queries, ahead, to);
    i += n;
  }
}

// ---------------------------------------------------------------- sums

// Weights of sixteen heads: for each the words of two neighbouring keys, block after block.
struct alignas(64) Weights {
  uint32_t of[kHeadLanes][kBlocks * kPairs];

  void gather(const LatentChunkArgs& a, const Keys& keys) {
    const LaneInts upper = LaneInts::set(static_cast<int32_t>(0xffff0000U)), none = LaneInts::set(0);
    const __m512i heads = _mm512_mullo_epi32(LaneInts::iota(0).v, LaneInts::set(kBlocks * kPairs).v);
    for (int i = 0; i < keys.block_count(); i++)
      for (int pair = 0; pair < kPairs; pair++) {
        const auto weights = [&](int place) {
          const int index = keys.index(keys.block(i) * kBlock + place);
          return index < 0 ? none : LaneInts::load(a.weights + index * kHeadLanes);
        };
        const LaneInts words = bit_or(shift_right<16>(weights(2 * pair)), bit_and(weights(2 * pair + 1), upper));
        _mm512_i32scatter_epi32(of[0] + i * kPairs + pair, heads, words.v, sizeof(uint32_t));
      }
  }
};

template <int Sum>
inline void add_values(const uint32_t* words) {
  if constexpr (Sum % 2 == 0) {
    _tile_loadd(6, words, kLine);
  } else {
    _tile_loadd(7, words, kLine);
  }
  if constexpr (Sum == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (Sum == 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (Sum == 2) _tile_dpbf16ps(2, 4, 6);
  if constexpr (Sum == 3) _tile_dpbf16ps(3, 4, 7);
}

// N sixteens of dimensions.
template <int N>
void sum_columns(const Keys& keys, const Weights& p, int column, Ahead& ahead, float* out) {
  const size_t stride = static_cast<size_t>(keys.columns()) * kLine;
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
  for (int i = 0; i < keys.block_count(); i++) {
    ahead.fetch();
    _tile_loadd(4, p.of[0] + i * kPairs, sizeof p.of[0]);
    add_values<0>(keys.words(column, i));
    if constexpr (N > 1) add_values<1>(keys.words(column + 1, i));
    if constexpr (N > 2) add_values<2>(keys.words(column + 2, i));
    if constexpr (N > 3) add_values<3>(keys.words(column + 3, i));
  }
  out += static_cast<ptrdiff_t>(column) * kTileRows;
  _tile_stored(0, out, stride);
  if constexpr (N > 1) _tile_stored(1, out + kTileRows, stride);
  if constexpr (N > 2) _tile_stored(2, out + 2 * kTileRows, stride);
  if constexpr (N > 3) _tile_stored(3, out + 3 * kTileRows, stride);
}

void sums(const Keys& keys, const Weights& p, int heads, Ahead& ahead, float* out) {
  configure(heads);
  for (int c = 0; c < keys.columns();) {
    const int left = keys.columns() - c, n = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (n == 4) sum_columns<4>(keys, p, c, ahead, out);
    if (n == 2) sum_columns<2>(keys, p, c, ahead, out);
    if (n == 1) sum_columns<1>(keys, p, c, ahead, out);
    c += n;
  }
}

}  // namespace

void latent_chunk_amx_bf16(const LatentChunkArgs& a) {
  const Keys keys(a);
  keys.merge_neighbours();
  KeyTile tiles[kKeyTiles];
  for (int i = 0; i * kTileRows < a.count; i++) tiles[i] = keys.tile(i);
  Weights p;
  Ahead ahead(a);
  for (int h = 0; h < a.heads; h += kHeadLanes) {
    merge_queries(a, a.queries + query_place(a.row_dim, h, 0), keys.queries());
    finish_stores();
    scores(a, tiles, keys.queries(), ahead);
    finish_stores();
    softmax_heads<false>(a, a.state + h);
    p.gather(a, keys);
    finish_stores();
    sums(keys, p, a.heads - h < kHeadLanes ? a.heads - h : kHeadLanes, ahead,
         a.out + static_cast<ptrdiff_t>(h) * up_to_lanes(a.rank));
  }
  _tile_release();
}

}  // namespace quire::kernels
