// The kernels of attention_kernels.h for any sixteen lanes, all but writing (attention_write_body.h): include after a
// math_lanes.h.
//
// `T` says how words multiply: what a word holds (kPerWord numbers), how words and broadcast words are loaded, the dot
// product's step, and the tile that fits the registers. Scores are lanes of keys, outputs lanes of dimensions, so no
// kernel sums across lanes but the softmax.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

// fp32: acc = fma(word, broadcast, acc).
struct F32Words {
  static constexpr int kPerWord = 1;
  static constexpr bool kScaled = false;  // whether rows of the cache have scales
  using Element = uint32_t;               // a number of q and p
  using Stored = uint32_t;                // a number of the cache
  using Word = uint32_t;
  using Words = Lanes;
  using Broadcast = Lanes;
  static Words load(const std::byte* p) { return Lanes::load(reinterpret_cast<const float*>(p)); }
  static Words load_part(const std::byte* p, int n) { return Lanes::load_part(reinterpret_cast<const float*>(p), n); }
  static Broadcast broadcast(const std::byte* p) {
    float x;
    __builtin_memcpy(&x, p, sizeof x);
    return Lanes::set(x);
  }
  static Lanes dot(Lanes acc, Words w, Broadcast b) { return fma(w, b, acc); }
  static void encode16(Lanes x, Element* out) { bits_of(x).store(out); }
};

// To nearest even, in the lower half of each lane; a NaN stays a quiet NaN.
inline LaneInts rounded_bf16(Lanes x) {
  const LaneInts bits = bits_of(x);
  const LaneInts odd = bit_and(shift_right<16>(bits), LaneInts::set(1));
  const LaneInts rounded = shift_right<16>(add(bits, add(odd, LaneInts::set(0x7fff))));
  const LaneInts nan = bit_or(shift_right<16>(bits), LaneInts::set(0x40));
  return select(greater_equal(x, x), rounded, nan);
}

// bf16 by two FMAs, the odd number first: what vdpbf16ps computes.
struct Bf16Words {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  using Element = uint16_t;
  using Stored = uint16_t;
  using Word = uint32_t;
  struct Words {
    Lanes even, odd;
  };
  using Broadcast = Words;
  static Words widen(LaneInts w) {
    return {from_bits(shift_left<16>(w)), from_bits(bit_and(w, LaneInts::set(static_cast<int32_t>(0xffff0000U))))};
  }
  static Words load(const std::byte* p) { return widen(LaneInts::load(p)); }
  static Words load_part(const std::byte* p, int n) { return widen(LaneInts::load_part(p, n)); }
  static Broadcast broadcast(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return widen(LaneInts::set(word));
  }
  static Lanes dot(Lanes acc, const Words& w, const Broadcast& b) {
    return fma(w.even, b.even, fma(w.odd, b.odd, acc));
  }
  static void encode16(Lanes x, Element* out) { rounded_bf16(x).store_low_halves(out); }
};

// int8 pairs, sign-extended to lanes, as the pairs of fp32 numbers that their bf16 numbers are.
inline Bf16Words::Words widen_bytes(LaneInts w) {
  return {to_floats(shift_right_signed<24>(shift_left<24>(w))), to_floats(shift_right_signed<8>(w))};
}

// int8 numbers times bf16 q and p, as bf16 numbers; scales come in between (numerics rule 13).
struct I8Words : Bf16Words {
  static constexpr bool kScaled = true;
  using Stored = int8_t;
  using Word = uint16_t;
  static Words load(const std::byte* p) { return widen_bytes(LaneInts::load_halves(p)); }
  static Words load_part(const std::byte* p, int n) { return widen_bytes(LaneInts::load_halves_part(p, n)); }
};

// A tile of Rows query rows times Columns vectors of keys (scores) or dimensions (values).
template <class Words, int Rows, int Columns>
struct Tile : Words {
  static constexpr int kRows = Rows;
  static constexpr int kColumns = Columns;
};

inline int least(int a, int b) { return a < b ? a : b; }
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

// ---------------------------------------------------------------- scores

// s[r][16 * run index] = q_r . k for NR runs from `first`. Fetching goes to the second-level cache: a chunk of V alone
// would fill the first.
template <class T, int MR, int NR, bool Ahead>
__attribute__((noinline)) void scores(const ChunkArgs& a, int row, int first, float (*s)[kSoftmaxChunk]) {
  const KeyRun* runs = a.runs->run + first;
  const size_t stride = a.runs->k_stride;
  const std::byte* q[MR];
  const std::byte* k[NR];
  Lanes acc[MR][NR];
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++) q[r] = static_cast<const std::byte*>(a.row[row + r].q);
#pragma GCC unroll 4
  for (int j = 0; j < NR; j++) k[j] = runs[j].k;
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[r][j] = Lanes::set(0);

  for (int block = 0; block * kValueBlock < a.head_dim; block++) {
    const int width = block_width(a.head_dim, block);
    const std::byte* v[NR];
    if constexpr (Ahead) {
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) v[j] = value_rows<T>(runs[j], block, width);
    }
    const int steps = width / T::kPerWord;
#pragma GCC unroll 1
    for (int d = 0; d < steps; d++) {
      typename T::Words key[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; j++) {
        key[j] = T::load(k[j]);
        k[j] += stride;
        if constexpr (Ahead) __builtin_prefetch(v[j] + static_cast<size_t>(d) * kVectorBytes<T>, 0, 2);
      }
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) {
        const typename T::Broadcast b = T::broadcast(q[r]);
        q[r] += 4;
#pragma GCC unroll 4
        for (int j = 0; j < NR; j++) acc[r][j] = T::dot(acc[r][j], key[j], b);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NR; j++) acc[r][j].store(s[row + r] + runs[j].index * kKeyRun);
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
      T::encode16(masked(row, base, mul(e, Lanes::load(a.runs->run[i].v_scales)), 0), p + base);
    } else {
      T::encode16(e, p + base);
    }
  }
  return {m, tree_sum(sum)};
}

// ---------------------------------------------------------------- values

// o[r][64 dimensions] = sum of p * V over the runs, keys ascending. NV vectors; unless Whole the last may be short.
template <class T, int MR, int NV, bool Whole, bool Ahead>
__attribute__((noinline)) void values(const ChunkArgs& a, int row, const typename T::Element (*p)[kSoftmaxChunk],
                                      const KeyRun* runs, int block, int first_dim) {
  const int width = block_width(a.head_dim, block);
  const int last = width - first_dim - (NV - 1) * Lanes::kCount;  // words of the last vector
  const size_t pitch = static_cast<size_t>(width) * sizeof(typename T::Word);
  Lanes acc[MR][NV];
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) acc[r][j] = Lanes::set(0);
  for (int i = 0; i < a.runs->count; i++) {
    const std::byte* v =
        value_rows<T>(runs[i], block, width) + static_cast<size_t>(first_dim) * sizeof(typename T::Word);
    const std::byte* weight = reinterpret_cast<const std::byte*>(p[row] + runs[i].index * kKeyRun);
    const std::byte* ahead = v;
    size_t ahead_stride = 0;
    if constexpr (Ahead) {
      if (i < a.next->count) {
        ahead_stride = a.next->k_stride;
        ahead = a.next->run[i].k + static_cast<size_t>(block * (kValueBlock / T::kPerWord)) * ahead_stride;
      }
    }
#pragma GCC unroll 1
    for (int t = 0; t < kKeyRun / T::kPerWord; t++) {
      typename T::Words value[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) {
        const std::byte* at = v + static_cast<size_t>(j) * kVectorBytes<T>;
        value[j] = Whole || j + 1 < NV ? T::load(at) : T::load_part(at, last);
        if constexpr (Ahead) {
          __builtin_prefetch(ahead, 0, 2);
          ahead += ahead_stride;
        }
      }
      v += pitch;
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++) {
        const typename T::Broadcast b = T::broadcast(weight + static_cast<size_t>(r) * sizeof p[0]);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) acc[r][j] = T::dot(acc[r][j], value[j], b);
      }
      weight += 4;
    }
  }
  // + 0.0: the sign of zero must not tell a masked key from an absent one.
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++)
      add(acc[r][j], Lanes::set(0))
          .store(a.o + (row + r) * kMaxHeadDim + block * kValueBlock + first_dim + j * Lanes::kCount);
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
    __builtin_memcpy(run, a.runs->run, static_cast<size_t>(count) * sizeof(KeyRun));
    if (a.lo % kKeyRun != 0) copy_visible<T>(a, run[0], copy[0]);
    if (a.hi % kKeyRun != 0 && (count > 1 || a.lo % kKeyRun == 0)) copy_visible<T>(a, run[count - 1], copy[1]);
  }
};

// ---------------------------------------------------------------- chunk

template <class T, int MR, bool Ahead>
void chunk_rows(const ChunkArgs& a, int row, const KeyRun* value_runs, float (*s)[kSoftmaxChunk],
                typename T::Element (*p)[kSoftmaxChunk]) {
  all_scores<T, MR, Ahead>(a, row, s);
  for (int r = row; r < row + MR; r++) {
    if (a.row[r].lo < a.row[r].hi) {
      a.state[r] = softmax<T>(a, a.row[r], s[r], p[r]);
    } else {  // sees nothing here, but other rows of the tile do
      a.state[r] = {-kInfinity, 0};
      __builtin_memset(p[r], 0, sizeof p[r]);
    }
  }
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

// The row's values once more, over the keys that it sees alone.
template <class T>
__attribute__((noinline)) void own_values(const ChunkArgs& a, int r, const typename T::Element (*p)[kSoftmaxChunk],
                                          VisibleValues<T>& v) {
  const QueryRow& row = a.row[r];
  const int first = row.lo / kKeyRun - a.lo / kKeyRun;
  KeyRuns runs = {.count = (row.hi - 1) / kKeyRun - row.lo / kKeyRun + 1, .k_stride = a.runs->k_stride, .run = {}};
  __builtin_memcpy(runs.run, a.runs->run + first, static_cast<size_t>(runs.count) * sizeof(KeyRun));
  ChunkArgs own = a;
  own.lo = row.lo;
  own.hi = row.hi;
  own.runs = &runs;
  v.find(own);
  all_values<T, 1, false>(own, r, p, v.run);
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
      if (met_foreign_nan(a, r)) own_values<T>(a, r, p, v);
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
  const float top = state->m > more->m ? state->m : more->m;
  const Lanes a = exp2_bounded(Lanes::set(state->m - top));
  const Lanes b = exp2_bounded(Lanes::set(more->m - top));
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
