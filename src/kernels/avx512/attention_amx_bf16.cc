// Softmax chunks of up to 16 rows by AMX tiles: one tdpbf16ps adds a block of 32 numbers, as rule 1 says, to 16 rows x
// 16 keys or dimensions. K and V lie as its second operand wants them: rows of 16 words, a word being two neighbours.
//
// Tiles 0-3 hold sums, 4 and 5 the rows' numbers (q or p), 6 and 7 those of the cache.
#include "kernels/avx512/attention_amx_bf16.h"

#include "kernels/avx512/math_lanes.h"
#include "kernels/avx512/tile_config.h"
#include "kernels/shared/attention_body.h"
#include "kernels/shared/attention_write_body.h"

namespace quire::kernels {
namespace {

// p is bf16 in its own order. The instruction rounds as rounded_bf16() does: see NativeBf16Words.
struct TileWords : Bf16Words {
  using Element = uint16_t;
  static void encode16(Lanes x, Element* row, int i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i), __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x.v)));
  }
};

constexpr int kBlock = TileWords::kBlock;
constexpr int kWordRows = kBlock / 2;
constexpr size_t kRunRows = kKeyRun / 2;  // of V
constexpr size_t kLine = 64;

// The compiler is not told that tiles are loaded from memory: what was stored for them must be there before.
inline void finish_stores() { asm volatile("" ::: "memory"); }

void configure(int rows) { _tile_loadconfig(&avx512::kBf16Tiles[static_cast<size_t>(rows)]); }

// Tile numbers are part of an instruction.
template <int Sum>
inline void zero_sum() {
  if constexpr (Sum == 0) _tile_zero(0);
  if constexpr (Sum == 1) _tile_zero(1);
  if constexpr (Sum == 2) _tile_zero(2);
  if constexpr (Sum == 3) _tile_zero(3);
}

template <int Sum>
inline void store_sum(float* to, size_t stride) {
  if constexpr (Sum == 0) _tile_stored(0, to, stride);
  if constexpr (Sum == 1) _tile_stored(1, to, stride);
  if constexpr (Sum == 2) _tile_stored(2, to, stride);
  if constexpr (Sum == 3) _tile_stored(3, to, stride);
}

template <int Turn>
inline void load_rows(const uint16_t* from, size_t stride) {
  if constexpr (Turn == 0) _tile_loadd(4, from, stride);
  if constexpr (Turn == 1) _tile_loadd(5, from, stride);
}

// Rows of this turn times words.
template <int Sum, int Turn>
inline void multiply(const std::byte* words, size_t stride) {
  if constexpr (Sum % 2 == 0) {
    _tile_loadd(6, words, stride);
  } else {
    _tile_loadd(7, words, stride);
  }
  if constexpr (Sum == 0 && Turn == 0) _tile_dpbf16ps(0, 4, 6);
  if constexpr (Sum == 1 && Turn == 0) _tile_dpbf16ps(1, 4, 7);
  if constexpr (Sum == 2 && Turn == 0) _tile_dpbf16ps(2, 4, 6);
  if constexpr (Sum == 3 && Turn == 0) _tile_dpbf16ps(3, 4, 7);
  if constexpr (Sum == 0 && Turn == 1) _tile_dpbf16ps(0, 5, 6);
  if constexpr (Sum == 1 && Turn == 1) _tile_dpbf16ps(1, 5, 7);
  if constexpr (Sum == 2 && Turn == 1) _tile_dpbf16ps(2, 5, 6);
  if constexpr (Sum == 3 && Turn == 1) _tile_dpbf16ps(3, 5, 7);
}

// Words of the cache, row by row.
struct WordRows {
  const std::byte* at;
  size_t stride;
};

// Room for words that do not lie as a tile wants them.
template <int Columns>
struct alignas(64) Staged {
  uint32_t words[kWordRows][Columns];
  WordRows rows() const { return {reinterpret_cast<const std::byte*>(words), sizeof words[0]}; }
};
using StagedKeys = Staged<kKeyRun>;
using StagedValues = Staged<kValueBlock>;

// ---------------------------------------------------------------- scores

// The rows' q, block by block, the last filled with zeros.
struct alignas(64) Queries {
  uint16_t of[kMaxHeadDim / kBlock][kAttentionTileRows][kBlock];

  void gather(const ChunkArgs& a) {
    for (int b = 0; b * kBlock < a.head_dim; b++) {
      const int left = a.head_dim - b * kBlock;
      const __mmask32 there = left >= kBlock ? ~0U : (1U << left) - 1U;
      for (int r = 0; r < a.rows; r++) {
        const auto* q = static_cast<const uint16_t*>(a.row[r].q);
        _mm512_store_si512(of[b][r], _mm512_maskz_loadu_epi16(there, q + b * kBlock));
      }
    }
  }
};

// A run's K in a block of dimensions.
inline WordRows key_words(const ChunkArgs& a, const KeyRun& run, int block, StagedKeys& staged) {
  const size_t stride = a.runs->k_stride;
  const std::byte* from = run.k + static_cast<size_t>(block * kWordRows) * stride;
  const int rows = a.head_dim / 2 - block * kWordRows;
  if (rows >= kWordRows) return {from, stride};
  for (int i = 0; i < kWordRows; i++, from += stride) {
    if (i < rows) {
      __builtin_memcpy(staged.words[i], from, sizeof staged.words[i]);
    } else {
      __builtin_memset(staged.words[i], 0, sizeof staged.words[i]);
    }
  }
  finish_stores();
  return staged.rows();
}

inline void fetch_values(const ChunkArgs& a, const KeyRun& run) {
  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const int width = block_width(a.head_dim, block);
    const std::byte* v = value_rows<TileWords>(run, block, width);
    for (size_t at = 0; at < kRunRows * static_cast<size_t>(width) * 4; at += kLine) __builtin_prefetch(v + at, 0, 2);
  }
}

template <int N, int Turn>
inline void score_block(const ChunkArgs& a, const KeyRun* runs, const Queries& q, int block, StagedKeys& staged) {
  load_rows<Turn>(q.of[block][0], sizeof q.of[block][0]);
  const auto words = [&](int j) { return key_words(a, runs[j], block, staged); };
  const WordRows k = words(0);
  multiply<0, Turn>(k.at, k.stride);
  if constexpr (N > 1) {
    const WordRows k1 = words(1);
    multiply<1, Turn>(k1.at, k1.stride);
  }
  if constexpr (N > 2) {
    const WordRows k2 = words(2);
    multiply<2, Turn>(k2.at, k2.stride);
    const WordRows k3 = words(3);
    multiply<3, Turn>(k3.at, k3.stride);
  }
}

// N runs: 4, 2 or 1.
template <int N>
inline void score_runs(const ChunkArgs& a, const KeyRun* runs, const Queries& q, float (*s)[kSoftmaxChunk]) {
  StagedKeys staged;
  zero_sum<0>();
  if constexpr (N > 1) zero_sum<1>();
  if constexpr (N > 2) zero_sum<2>();
  if constexpr (N > 2) zero_sum<3>();
  for (int block = 0; block * kBlock < a.head_dim; block += 2) {
    score_block<N, 0>(a, runs, q, block, staged);
    if ((block + 1) * kBlock < a.head_dim) score_block<N, 1>(a, runs, q, block + 1, staged);
  }
  const auto to = [&](int j) { return s[0] + runs[j].index * kKeyRun; };
  store_sum<0>(to(0), sizeof s[0]);
  if constexpr (N > 1) store_sum<1>(to(1), sizeof s[0]);
  if constexpr (N > 2) store_sum<2>(to(2), sizeof s[0]);
  if constexpr (N > 2) store_sum<3>(to(3), sizeof s[0]);
}

void tile_scores(const ChunkArgs& a, float (*s)[kSoftmaxChunk]) {
  Queries q;
  q.gather(a);
  finish_stores();
  const KeyRun* run = a.runs->run;
  const int count = a.runs->count;
  for (int i = 0; i < count;) {
    const int n = count - i >= 4 ? 4 : count - i >= 2 ? 2 : 1;
    if (a.next != nullptr) {
      for (int j = 0; j < n; j++) fetch_values(a, run[i + j]);
    }
    if (n == 4) score_runs<4>(a, run + i, q, s);
    if (n == 2) score_runs<2>(a, run + i, q, s);
    if (n == 1) score_runs<1>(a, run + i, q, s);
    i += n;
  }
}

// ---------------------------------------------------------------- values

// V of a block of 32 keys, of which one run or both are there, in a block of dimensions.
struct KeyPair {
  const KeyRun* run[2];  // null: no row sees it
};

inline WordRows value_words(const KeyPair& pair, int block, int width, StagedValues& staged) {
  const size_t pitch = static_cast<size_t>(width) * sizeof(uint32_t);
  if (pair.run[0] != nullptr && pair.run[1] != nullptr && width % Lanes::kCount == 0) {
    const std::byte* first = value_rows<TileWords>(*pair.run[0], block, width);
    if (value_rows<TileWords>(*pair.run[1], block, width) == first + kRunRows * pitch) return {first, pitch};
  }
  __builtin_memset(staged.words, 0, sizeof staged.words);
  for (size_t half = 0; half < 2; half++) {
    if (pair.run[half] == nullptr) continue;
    const std::byte* from = value_rows<TileWords>(*pair.run[half], block, width);
    for (size_t i = 0; i < kRunRows; i++) __builtin_memcpy(staged.words[half * kRunRows + i], from + i * pitch, pitch);
  }
  finish_stores();
  return staged.rows();
}

// The next chunk's K, as far as this block of keys and dimensions goes.
inline void fetch_keys(const ChunkArgs& a, int first_run, int block) {
  const KeyRuns& next = *a.next;
  for (int i = first_run; i < least(first_run + 2, next.count); i++) {
    const std::byte* k = next.run[i].k + static_cast<size_t>(block * kValueBlock / 2) * next.k_stride;
    for (int d = 0; d < block_width(a.head_dim, block) / 2; d++, k += next.k_stride) __builtin_prefetch(k, 0, 2);
  }
}

template <int N, int Turn>
inline void value_block(const uint16_t* p, const WordRows& v) {
  load_rows<Turn>(p, kSoftmaxChunk * sizeof *p);
  multiply<0, Turn>(v.at, v.stride);
  if constexpr (N > 1) multiply<1, Turn>(v.at + kLine, v.stride);
  if constexpr (N > 2) multiply<2, Turn>(v.at + 2 * kLine, v.stride);
  if constexpr (N > 3) multiply<3, Turn>(v.at + 3 * kLine, v.stride);
}

// N vectors of dimensions of a block.
template <int N>
void value_columns(const ChunkArgs& a, int row, const uint16_t (*p)[kSoftmaxChunk], const KeyRun* runs, int block) {
  constexpr size_t kStride = kMaxHeadDim * sizeof(float);
  const int width = block_width(a.head_dim, block);
  StagedValues staged[2];
  zero_sum<0>();
  if constexpr (N > 1) zero_sum<1>();
  if constexpr (N > 2) zero_sum<2>();
  if constexpr (N > 3) zero_sum<3>();
  int i = 0;
  const auto next_block = [&](StagedValues& room) {
    const int even = runs[i].index / 2 * 2;
    KeyPair pair = {};
    while (i < a.runs->count && runs[i].index < even + 2) {
      pair.run[runs[i].index - even] = &runs[i];
      i++;
    }
    return value_words(pair, block, width, room);
  };
  const bool ahead = a.next != nullptr;
  while (i < a.runs->count) {
    if (ahead) fetch_keys(a, i, block);
    const uint16_t* weights = p[row] + runs[i].index / 2 * kBlock;
    value_block<N, 0>(weights, next_block(staged[0]));
    if (i == a.runs->count) break;
    if (ahead) fetch_keys(a, i, block);
    weights = p[row] + runs[i].index / 2 * kBlock;
    value_block<N, 1>(weights, next_block(staged[1]));
  }
  float* out = a.o + row * kMaxHeadDim + block * kValueBlock;
  store_sum<0>(out, kStride);
  if constexpr (N > 1) store_sum<1>(out + Lanes::kCount, kStride);
  if constexpr (N > 2) store_sum<2>(out + 2 * Lanes::kCount, kStride);
  if constexpr (N > 3) store_sum<3>(out + 3 * Lanes::kCount, kStride);
}

// o of `rows` rows from `row` on, for which the tiles are configured.
void tile_values(const ChunkArgs& a, int row, int rows, const uint16_t (*p)[kSoftmaxChunk], const KeyRun* runs) {
  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const int vectors = (block_width(a.head_dim, block) + Lanes::kCount - 1) / Lanes::kCount;
    if (vectors == 4) value_columns<4>(a, row, p, runs, block);
    if (vectors == 3) value_columns<3>(a, row, p, runs, block);
    if (vectors == 2) value_columns<2>(a, row, p, runs, block);
    if (vectors == 1) value_columns<1>(a, row, p, runs, block);
  }
  // + 0.0, as in values().
  for (int r = row; r < row + rows; r++)
    for (int d = 0; d < a.head_dim; d += Lanes::kCount) {
      float* o = a.o + r * kMaxHeadDim + d;
      add(Lanes::load(o), Lanes::set(0)).store(o);
    }
}

// ---------------------------------------------------------------- chunk

// The other run of a block of which only one is there must weigh nothing.
void clear_absent(const ChunkArgs& a, uint16_t (*p)[kSoftmaxChunk]) {
  constexpr size_t kBytes = kKeyRun * sizeof(uint16_t);
  const int first = a.runs->run[0].index, last = a.runs->run[a.runs->count - 1].index;
  for (int r = 0; r < a.rows; r++) {
    if (first % 2 == 1) __builtin_memset(p[r] + (first - 1) * kKeyRun, 0, kBytes);
    if (last % 2 == 0) __builtin_memset(p[r] + (last + 1) * kKeyRun, 0, kBytes);
  }
}

}  // namespace

void attention_encode_amx_bf16(const float* x, int n, void* out) { encode_row<TileWords>(x, n, out); }

void attention_chunk_amx_bf16(const ChunkArgs& a) {
  alignas(64) float s[kAttentionTileRows][kSoftmaxChunk];
  alignas(64) uint16_t p[kAttentionTileRows][kSoftmaxChunk];
  VisibleValues<TileWords> v;
  v.find(a);
  configure(a.rows);
  tile_scores(a, s);
  softmax_rows<TileWords>(a, 0, a.rows, s, p);
  clear_absent(a, p);
  finish_stores();
  tile_values(a, 0, a.rows, p, v.run);
  for (int r = 0; r < a.rows; r++) {
    if (!met_foreign_nan(a, r)) continue;
    configure(1);
    own_values(a, r, v, [&](const ChunkArgs& own) {
      finish_stores();
      tile_values(own, r, 1, p, v.run);
    });
  }
  _tile_release();
}

}  // namespace quire::kernels
