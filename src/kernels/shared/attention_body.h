// The kernels of attention_kernels.h for any sixteen lanes, all but writing (attention_write_body.h): include after a
// math_lanes.h.
//
// `T` says how words multiply (attention_words.h) and which tile fits the registers. Scores are lanes of keys, outputs
// lanes of dimensions, so no kernel sums across lanes but the softmax.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/shared/attention_words.h"

namespace quire::kernels {
namespace {

inline int least(int a, int b) { return a < b ? a : b; }

// A tile of Rows query rows times Columns vectors of keys (scores) or dimensions (values).
template <class Words, int Rows, int Columns>
struct Tile : Words {
  static constexpr int kRows = Rows;
  static constexpr int kColumns = Columns;
};

inline int block_width(int head_dim, int block) { return least(kValueBlock, head_dim - block * kValueBlock); }

// Sixteen words of the cache.
template <class T>
constexpr size_t kVectorBytes = Lanes::kCount * sizeof(typename T::Word);

// The run's first row of V in a dimension block.
template <class T>
inline const std::byte* value_rows(const KeyRun& run, int block, int width) {
  return run.v + static_cast<size_t>(block) * run.v_block_stride +
         static_cast<size_t>(run.v_place / T::kPerWord) * static_cast<size_t>(width) * sizeof(typename T::Word);
}

// Sums of a tile in registers, and the same in memory.
template <int MR, int NR>
struct Sums {
  Lanes of[MR][NR];

  static Sums zero() {
    Sums s;
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) s.of[r][j] = Lanes::set(0);
    return s;
  }
  // Into memory, and out of registers, which a compiler that looks through the memory would keep them in.
  void leave_in(float* memory) const {
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) of[r][j].store(memory + (r * NR + j) * Lanes::kCount);
    asm volatile("" : : "r"(memory) : "memory");
  }
};

// acc + (even + odd), or of one chain itself. Sums of blocks before lie in `to`; row r's vector j is to(r, j).
template <class T, int MR, int NR, class To>
__attribute__((always_inline)) inline void add_block(const float* even, const Sums<MR, NR>& odd, bool first, To to) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      float* sum = to(r, j);
      Lanes x = odd.of[r][j];
      if constexpr (T::kChains == 2) {
        x = add(Lanes::load(even + (r * NR + j) * Lanes::kCount), x);
        x = add(first ? Lanes::set(0) : Lanes::load(sum), x);
      }
      x.store(sum);
    }
}

// ---------------------------------------------------------------- scores

// One chain over a block's words of q and K. Fetching goes to the second-level cache: a chunk of V alone would fill the
// first.
template <class T, int Chain, bool Ahead, int MR, int NR>
__attribute__((always_inline)) inline void score_chain(Sums<MR, NR>& acc, const typename T::Element* const (&q)[MR],
                                                       const std::byte* const (&k)[NR], size_t stride, int words,
                                                       const std::byte* const (&v)[NR]) {
  size_t at = 0;
#pragma GCC unroll 1
  for (int d = 0; d < words; d += T::kStepWords) {
    typename T::Words key[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      key[j] = T::template load<Chain>(k[j] + at, stride);
      if constexpr (Ahead && Chain == 0) {
#pragma GCC unroll 2
        for (int i = 0; i < T::kStepWords; i++)
          __builtin_prefetch(v[j] + static_cast<size_t>(d + i) * kVectorBytes<T>, 0, 2);
      }
    }
    at += stride * T::kStepWords;
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      const typename T::Factor f = T::template factor<Chain>(q[r], d);
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) acc.of[r][j] = T::dot(acc.of[r][j], key[j], f);
    }
  }
}

// s[r][16 * run index] = q_r . k for NR runs from `first`.
template <class T, int MR, int NR, bool Ahead>
__attribute__((noinline)) void scores(const ChunkArgs& a, int row, int first, float (*s)[kSoftmaxChunk]) {
  const KeyRun* runs = a.runs->run + first;
  const size_t stride = a.runs->k_stride;
  alignas(64) float even[MR * NR * Lanes::kCount];
  for (int begin = 0; begin < a.head_dim; begin += T::kBlock) {
    const int words = least(T::kBlock, a.head_dim - begin) / T::kPerWord;
    const typename T::Element* q[MR];
    const std::byte *k[NR], *v[NR] = {};
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) q[r] = static_cast<const typename T::Element*>(a.row[row + r].q) + begin;
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) {
      k[j] = runs[j].k + static_cast<size_t>(begin / T::kPerWord) * stride;
      if constexpr (Ahead) {
        const int block = begin / kValueBlock;
        v[j] = value_rows<T>(runs[j], block, block_width(a.head_dim, block)) +
               static_cast<size_t>(begin % kValueBlock / T::kPerWord) * kVectorBytes<T>;
      }
    }
    auto acc = Sums<MR, NR>::zero();
    score_chain<T, 0, Ahead>(acc, q, k, stride, words, v);
    if constexpr (T::kChains == 2) {
      acc.leave_in(even);
      acc = Sums<MR, NR>::zero();
      score_chain<T, 1, Ahead>(acc, q, k, stride, words, v);
    }
    add_block<T>(even, acc, begin == 0, [&](int r, int j) { return s[row + r] + runs[j].index * kKeyRun; });
  }
}

template <class T, int MR, bool Ahead>
void all_scores(const ChunkArgs& a, int row, float (*s)[kSoftmaxChunk]) {
  int i = 0;
  for (; i + T::kColumns <= a.runs->count; i += T::kColumns) scores<T, MR, T::kColumns, Ahead>(a, row, i, s);
  const int rest = a.runs->count - i;
  if constexpr (T::kColumns > 3)
    if (rest == 3) scores<T, MR, 3, Ahead>(a, row, i, s);
  if constexpr (T::kColumns > 2)
    if (rest == 2) scores<T, MR, 2, Ahead>(a, row, i, s);
  if constexpr (T::kColumns > 1)
    if (rest == 1) scores<T, MR, 1, Ahead>(a, row, i, s);
}

// ---------------------------------------------------------------- softmax

// `x` for the keys that the row sees, of the sixteen from `base` on; `other` for the rest, whatever x is there.
inline Lanes masked(const QueryRow& row, int base, Lanes x, float other) {
  if (base >= row.lo && base + kKeyRun <= row.hi) return x;
  const LaneInts key = LaneInts::iota(base);
  const LaneMask seen = both(greater(key, LaneInts::set(row.lo - 1)), greater(LaneInts::set(row.hi), key));
  return select(seen, x, Lanes::set(other));
}

// Scores in log2 units; keys outside [lo, hi) become -inf, whatever was there.
inline Lanes masked_scores(const ChunkArgs& a, const QueryRow& row, int base, Lanes x) {
  x = mul(x, Lanes::set(a.scale));
  if (a.soft_cap > 0) x = mul(Lanes::set(a.soft_cap), tanh_lanes(div(x, Lanes::set(a.soft_cap))));
  return masked(row, base, mul(x, Lanes::set(kLog2e)), -kInfinity);
}

// Whether one of the masked scores is NaN.
inline bool any_nan(const ChunkArgs& a, const float* s) {
  Lanes count = Lanes::set(0);
  for (int i = 0; i < a.runs->count; i++) {
    const Lanes x = Lanes::load(s + a.runs->run[i].index * kKeyRun);
    count = add(count, select(greater_equal(x, x), Lanes::set(0), Lanes::set(1)));
  }
  return tree_sum(count) > 0;
}

// A NaN among the scores makes l and all of p * V NaN; the maximum is that of the others, so that it cannot depend on
// how many masked keys follow.
template <class T>
inline SoftmaxState softmax(const ChunkArgs& a, const QueryRow& row, float* s, typename T::Element* p) {
  Lanes peak = Lanes::set(-kInfinity);
  for (int i = 0; i < a.runs->count; i++) {
    const int base = a.runs->run[i].index * kKeyRun;
    Lanes x = Lanes::load(s + base);
    if constexpr (T::kScaled) x = mul(x, Lanes::load(a.runs->run[i].k_scales));
    x = masked_scores(a, row, base, x);
    x.store(s + base);
    peak = max(x, peak);
  }
  float m = max_of(peak);
  if (m == -kInfinity && any_nan(a, s)) m = 0;  // -inf would say that there is nothing here
  Lanes sum = Lanes::set(0);
  for (int i = 0; i < a.runs->count; i++) {
    const int base = a.runs->run[i].index * kKeyRun;
    const Lanes e = exp2_bounded(sub(Lanes::load(s + base), Lanes::set(m)));
    sum = add(sum, e);
    if constexpr (T::kScaled) {
      T::encode16(masked(row, base, mul(e, Lanes::load(a.runs->run[i].v_scales)), 0), p, base);
    } else {
      T::encode16(e, p, base);
    }
  }
  return {m, tree_sum(sum)};
}

// ---------------------------------------------------------------- values

// What a pass over some vectors of dimensions reads: from dimension first_dim of a block on, `last` words in the last
// vector unless that is whole.
struct ValueColumns {
  int block;
  int first_dim;
  int width;  // of the block
  int last;
};

// One chain over a run's words of p and V.
template <class T, int Chain, bool Whole, bool Ahead, int MR, int NV>
__attribute__((always_inline)) inline void value_chain(Sums<MR, NV>& acc, const ChunkArgs& a,
                                                       const typename T::Element (*p)[kSoftmaxChunk],
                                                       const KeyRun* runs, int i, const ValueColumns& c) {
  const size_t pitch = static_cast<size_t>(c.width) * sizeof(typename T::Word);
  const std::byte* v =
      value_rows<T>(runs[i], c.block, c.width) + static_cast<size_t>(c.first_dim) * sizeof(typename T::Word);
  const int key = runs[i].index * kKeyRun;
  const int block = key / T::kBlock * T::kBlock;
  const std::byte* ahead = v;
  size_t ahead_stride = 0;
  if constexpr (Ahead && Chain == 0) {
    if (i < a.next->count) {
      ahead_stride = a.next->k_stride;
      ahead = a.next->run[i].k +
              static_cast<size_t>(c.block * (kValueBlock / T::kPerWord) + c.first_dim / T::kPerWord) * ahead_stride;
    }
  }
#pragma GCC unroll 1
  for (int t = 0; t < kKeyRun / T::kPerWord; t += T::kStepWords) {
    typename T::Words value[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) {
      const std::byte* at = v + static_cast<size_t>(j) * kVectorBytes<T>;
      value[j] =
          Whole || j + 1 < NV ? T::template load<Chain>(at, pitch) : T::template load_part<Chain>(at, pitch, c.last);
      if constexpr (Ahead && Chain == 0) {
#pragma GCC unroll 2
        for (int n = 0; n < T::kStepWords; n++) {
          __builtin_prefetch(ahead, 0, 2);
          ahead += ahead_stride;
        }
      }
    }
    v += pitch * T::kStepWords;
    const int word = (key - block) / T::kPerWord + t;
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      const typename T::Factor f = T::template factor<Chain>(p[r] + block, word);
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) acc.of[r][j] = T::dot(acc.of[r][j], value[j], f);
    }
  }
}

// o[r][64 dimensions] = sum of p * V over the runs, keys ascending. NV vectors; unless Whole the last may be short.
template <class T, int MR, int NV, bool Whole, bool Ahead>
__attribute__((noinline)) void values(const ChunkArgs& a, int row, const typename T::Element (*p)[kSoftmaxChunk],
                                      const KeyRun* runs, int block, int first_dim) {
  const int width = block_width(a.head_dim, block);
  const ValueColumns c = {block, first_dim, width, width - first_dim - (NV - 1) * Lanes::kCount};
  const auto out = [&](int r, int j) {
    return a.o + (row + r) * kMaxHeadDim + block * kValueBlock + first_dim + j * Lanes::kCount;
  };
  alignas(64) float even[MR * NV * Lanes::kCount];
  const int count = a.runs->count;
  for (int i = 0, end = 0; i < count; i = end) {
    end = i + 1;
    while (end < count && runs[end].index * kKeyRun / T::kBlock == runs[i].index * kKeyRun / T::kBlock) end++;
    auto acc = Sums<MR, NV>::zero();
    for (int n = i; n < end; n++) value_chain<T, 0, Whole, Ahead>(acc, a, p + row, runs, n, c);
    if constexpr (T::kChains == 2) {
      acc.leave_in(even);
      acc = Sums<MR, NV>::zero();
      for (int n = i; n < end; n++) value_chain<T, 1, Whole, Ahead>(acc, a, p + row, runs, n, c);
    }
    add_block<T>(even, acc, i == 0, out);
  }
  // + 0.0: the sign of zero must not tell a masked key from an absent one.
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) add(Lanes::load(out(r, j)), Lanes::set(0)).store(out(r, j));
}

template <class T, int MR, bool Ahead>
void all_values(const ChunkArgs& a, int row, const typename T::Element (*p)[kSoftmaxChunk], const KeyRun* runs) {
  constexpr int kStep = T::kColumns * Lanes::kCount;
  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const int width = block_width(a.head_dim, block);
    int d = 0;
    for (; d + kStep <= width; d += kStep) values<T, MR, T::kColumns, true, Ahead>(a, row, p, runs, block, d);
    const int vectors = (width - d + Lanes::kCount - 1) / Lanes::kCount;
    if constexpr (T::kColumns > 3)
      if (vectors == 4) values<T, MR, 4, false, Ahead>(a, row, p, runs, block, d);
    if constexpr (T::kColumns > 2)
      if (vectors == 3) values<T, MR, 3, false, Ahead>(a, row, p, runs, block, d);
    if constexpr (T::kColumns > 1)
      if (vectors == 2) values<T, MR, 2, false, Ahead>(a, row, p, runs, block, d);
    if (vectors == 1) values<T, MR, 1, false, Ahead>(a, row, p, runs, block, d);
  }
}

// V of a run that the rows see only in part, with unseen tokens zeroed: free places may hold anything, and 0 x NaN is
// not 0.
template <class T>
void copy_visible(const ChunkArgs& a, KeyRun& run, typename T::Word* copy) {
  using Word = typename T::Word;
  constexpr int kRows = kKeyRun / T::kPerWord;
  constexpr int kBits = 8 * sizeof(Word) / T::kPerWord;
  constexpr uint32_t kNumber = 0xffffffffU >> (32 - kBits);
  uint32_t mask[kRows];
  for (int t = 0; t < kRows; t++) {
    mask[t] = 0;
    for (int e = 0; e < T::kPerWord; e++) {
      const int key = run.index * kKeyRun + t * T::kPerWord + e;
      if (key >= a.lo && key < a.hi) mask[t] |= kNumber << (kBits * e);
    }
  }
  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const int width = block_width(a.head_dim, block);
    const std::byte* from = value_rows<T>(run, block, width);
    Word* to = copy + block * kValueBlock * kRows;
    for (int t = 0; t < kRows; t++)
      for (int d = 0; d < width; d++, from += sizeof(Word)) {
        Word word;
        __builtin_memcpy(&word, from, sizeof word);
        *to++ = static_cast<Word>(word & mask[t]);
      }
  }
  run.v = reinterpret_cast<const std::byte*>(copy);
  run.v_place = 0;
  run.v_block_stride = kValueBlock * kRows * sizeof(Word);
}

// Where V of [a.lo, a.hi) lies: in the cache, but for copies of runs at the ends that are seen only in part.
template <class T>
struct VisibleValues {
  KeyRun run[kChunkRuns];
  alignas(64) typename T::Word copy[2][kMaxHeadDim * kKeyRun / T::kPerWord];

  void find(const ChunkArgs& a) {
    const int count = a.runs->count;
    for (int i = 0; i < count; i++) run[i] = a.runs->run[i];
    if (a.lo % kKeyRun != 0) copy_visible<T>(a, run[0], copy[0]);
    if (a.hi % kKeyRun != 0 && (count > 1 || a.lo % kKeyRun == 0)) copy_visible<T>(a, run[count - 1], copy[1]);
  }
};

// ---------------------------------------------------------------- chunk

template <class T>
inline void softmax_rows(const ChunkArgs& a, int row, int rows, float (*s)[kSoftmaxChunk],
                         typename T::Element (*p)[kSoftmaxChunk]) {
  for (int r = row; r < row + rows; r++) {
    if (a.row[r].lo < a.row[r].hi) {
      a.state[r] = softmax<T>(a, a.row[r], s[r], p[r]);
    } else {  // sees nothing here, but other rows of the tile do
      a.state[r] = {-kInfinity, 0};
      __builtin_memset(p[r], 0, sizeof p[r]);
    }
  }
}

template <class T, int MR, bool Ahead>
void chunk_rows(const ChunkArgs& a, int row, const KeyRun* value_runs, float (*s)[kSoftmaxChunk],
                typename T::Element (*p)[kSoftmaxChunk]) {
  all_scores<T, MR, Ahead>(a, row, s);
  softmax_rows<T>(a, row, MR, s, p);
  all_values<T, MR, Ahead>(a, row, p, value_runs);
}

template <class T, bool Ahead>
void chunk_tile(const ChunkArgs& a, int row, int rows, const KeyRun* value_runs, float (*s)[kSoftmaxChunk],
                typename T::Element (*p)[kSoftmaxChunk]) {
  if (rows == 1) return chunk_rows<T, 1, Ahead>(a, row, value_runs, s, p);
  if constexpr (T::kRows >= 2)
    if (rows == 2) return chunk_rows<T, 2, Ahead>(a, row, value_runs, s, p);
  if constexpr (T::kRows >= 3)
    if (rows == 3) return chunk_rows<T, 3, Ahead>(a, row, value_runs, s, p);
  if constexpr (T::kRows >= 4)
    if (rows == 4) return chunk_rows<T, 4, Ahead>(a, row, value_runs, s, p);
  if constexpr (T::kRows >= 5)
    if (rows == 5) return chunk_rows<T, 5, Ahead>(a, row, value_runs, s, p);
  if constexpr (T::kRows >= 6)
    if (rows == 6) return chunk_rows<T, 6, Ahead>(a, row, value_runs, s, p);
}

// Values that this row does not see, but another of the tile does, met a weight of zero: no more than that happened,
// unless one was not finite. Then there is a NaN.
inline bool met_foreign_nan(const ChunkArgs& a, int r) {
  const QueryRow& row = a.row[r];
  if (row.lo >= row.hi || (row.lo == a.lo && row.hi == a.hi)) return false;
  for (int d = 0; d < a.head_dim; d += Lanes::kCount) {
    const Lanes o = Lanes::load(a.o + r * kMaxHeadDim + d);
    if (bits_of(greater_equal(o, o)) != 0xffffU) return true;
  }
  return false;
}

// The row's values once more, over the keys that it sees alone: compute(args) takes them from v.
template <class T, class Compute>
__attribute__((noinline)) void own_values(const ChunkArgs& a, int r, VisibleValues<T>& v, Compute compute) {
  const QueryRow& row = a.row[r];
  const int first = row.lo / kKeyRun - a.lo / kKeyRun;
  KeyRuns runs = {.count = (row.hi - 1) / kKeyRun - row.lo / kKeyRun + 1, .k_stride = a.runs->k_stride, .run = {}};
  __builtin_memcpy(runs.run, a.runs->run + first, static_cast<size_t>(runs.count) * sizeof(KeyRun));
  ChunkArgs own = a;
  own.lo = row.lo;
  own.hi = row.hi;
  own.runs = &runs;
  own.next = nullptr;
  v.find(own);
  compute(own);
}

template <class T>
void chunk(const ChunkArgs& a) {
  alignas(64) float s[kAttentionTileRows][kSoftmaxChunk];
  alignas(64) typename T::Element p[kAttentionTileRows][kSoftmaxChunk];
  VisibleValues<T> v;
  v.find(a);
  for (int row = 0; row < a.rows; row += T::kRows) {
    const int rows = least(T::kRows, a.rows - row);
    if (a.next != nullptr && row == 0) {
      chunk_tile<T, true>(a, row, rows, v.run, s, p);
    } else {
      chunk_tile<T, false>(a, row, rows, v.run, s, p);
    }
  }
  if constexpr (!T::kScaled) {  // int8 is always finite
    for (int r = 0; r < a.rows; r++)
      if (met_foreign_nan(a, r)) {
        own_values(a, r, v, [&](const ChunkArgs& own) { all_values<T, 1, false>(own, r, p, v.run); });
      }
  }
}

// ---------------------------------------------------------------- merging

template <class F>
inline void map_dims(int head_dim, float* to, F f) {
  int d = 0;
  for (; d + Lanes::kCount <= head_dim; d += Lanes::kCount) f(d, Lanes::load(to + d)).store(to + d);
  if (const int n = head_dim - d; n > 0) f(d, Lanes::load_part(to + d, n)).store_part(to + d, n);
}

inline void merge_states(float* to, SoftmaxState* state, const float* o, const SoftmaxState* more, int head_dim) {
  if (more->m == -kInfinity) return;
  if (state->m == -kInfinity) {
    *state = *more;
    map_dims(head_dim, to, [o](int d, Lanes) { return Lanes::load(o + d); });
    return;
  }
  // The greater one's factor is 2^0. Where both are infinite, everything is NaN already.
  const bool higher = more->m > state->m;
  const float top = higher ? more->m : state->m;
  const Lanes factor = exp2_bounded(Lanes::set((higher ? state->m : more->m) - top));
  const Lanes a = higher ? factor : Lanes::set(1);
  const Lanes b = higher ? Lanes::set(1) : factor;
  *state = {top, first_of(fma(Lanes::set(more->l), b, mul(Lanes::set(state->l), a)))};
  map_dims(head_dim, to, [=](int d, Lanes x) { return fma(Lanes::load(o + d), b, mul(x, a)); });
}

inline void finish_row(float* to, const SoftmaxState* state, const float* sink, int head_dim) {
  SoftmaxState s = *state;
  if (s.m == -kInfinity) {  // no key at all: a sink alone gives 0, nothing gives NaN
    const Lanes empty = Lanes::set(sink != nullptr ? 0 : __builtin_nanf(""));
    map_dims(head_dim, to, [=](int, Lanes) { return empty; });
    return;
  }
  if (sink != nullptr) {
    alignas(64) static constexpr float kNoValue[kMaxHeadDim] = {};
    const SoftmaxState sink_state = {*sink * kLog2e, 1};
    merge_states(to, &s, kNoValue, &sink_state, head_dim);
  }
  const Lanes inverse = Lanes::set(1.0F / s.l);
  map_dims(head_dim, to, [=](int, Lanes x) { return mul(x, inverse); });
}

}  // namespace
}  // namespace quire::kernels
