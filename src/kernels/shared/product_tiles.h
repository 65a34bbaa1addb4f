// Products of fp32 rows for any sixteen lanes (numerics rule 1), and rows of a cache as their inputs: include after a
// math_lanes.h.
//
// `Tile` is how many accumulators of sixteen lanes a chain has at once. The terms of a product are walked some blocks
// at a time, over all rows and vectors: these vectors then stay in the first-level cache. `Single`: fp32, in one chain;
// else bf16. Numbers of vectors are fp32, or bf16 that are widened when they are loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/shared/attention_words.h"
#include "kernels/shared/lane_rows.h"
#include "kernels/term_blocks.h"

namespace quire::kernels {
namespace {

inline Lanes load_vector(const float* p) { return Lanes::load(p); }
inline Lanes load_vector(const uint16_t* p) { return from_bits(shift_left<16>(LaneInts::load_halves(p))); }

// out[row][n] = sum over the terms k of x[row][k] * v[k][n].
template <class V>
struct Product {
  int rows;
  int vectors;     // sixteens of n
  const float* x;  // of row r and term k: x[r * x_row + k * x_term]
  ptrdiff_t x_row, x_term;
  const V* v;
  ptrdiff_t v_term;
  float* out;
  ptrdiff_t out_row;
  TermBlocks blocks;
};

template <int MR, int NV>
struct TileSums {
  Lanes of[MR][NV];
};

template <int MR, int NV>
__attribute__((always_inline)) inline void set_zero(TileSums<MR, NV>& sums) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) sums.of[r][j] = Lanes::set(0);
}

template <int MR, int NV>
__attribute__((always_inline)) inline void load(TileSums<MR, NV>& sums, float* const (&from)[MR][NV]) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) sums.of[r][j] = Lanes::load(from[r][j]);
}

template <int MR, int NV>
__attribute__((always_inline)) inline void store(const TileSums<MR, NV>& sums, float* const (&to)[MR][NV]) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) sums.of[r][j].store(to[r][j]);
}

template <int MR, int NV, class V>
__attribute__((always_inline)) inline void chain(TileSums<MR, NV>& sums, const float* const (&x)[MR], ptrdiff_t x_at,
                                                 ptrdiff_t x_step, const V* const (&v)[NV], ptrdiff_t v_at,
                                                 ptrdiff_t v_step, int count) {
#pragma GCC unroll 1
  for (int i = 0; i < count; i++, x_at += x_step, v_at += v_step) {
    Lanes vector[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) vector[j] = load_vector(v[j] + v_at);
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      const Lanes factor = Lanes::set(x[r][x_at]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) sums.of[r][j] = fma(factor, vector[j], sums.of[r][j]);
    }
  }
}

// Rows and vectors beyond the last are the last again, so that there is one tile for all. Sums wait in memory between
// blocks, where they take no registers.
template <bool Single, int MR, int NV, class V>
__attribute__((noinline)) void product_tile(const Product<V>& p, int row, int vector, int begin, int end) {
  const float* x[MR];
  const V* v[NV];
  float* out[MR][NV];
#pragma GCC unroll 8
  for (int j = 0; j < NV; j++) {
    const int n = (vector + j < p.vectors ? vector + j : p.vectors - 1) * Lanes::kCount;
    v[j] = p.v + n;
#pragma GCC unroll 8
    for (int r = 0; r < MR; r++) {
      const ptrdiff_t m = row + r < p.rows ? row + r : p.rows - 1;
      x[r] = p.x + m * p.x_row;
      out[r][j] = p.out + m * p.out_row + n;
    }
  }
  for (int b = begin; b < end; b++) {
    const TermBlock& block = p.blocks.block[b];
    const ptrdiff_t x_step = block.step * p.x_term, v_step = block.step * p.v_term;
    TileSums<MR, NV> even, odd, total;
    if (Single && b > 0) {
      load(even, out);
    } else {
      set_zero(even);
    }
    chain(even, x, block.first * p.x_term, x_step, v, block.first * p.v_term, v_step, block.count);
    if constexpr (Single) {
      store(even, out);
    } else {
      set_zero(odd);
      chain(odd, x, block.second * p.x_term, x_step, v, block.second * p.v_term, v_step, block.second_count);
      set_zero(total);
      if (b > 0) load(total, out);
#pragma GCC unroll 8
      for (int r = 0; r < MR; r++)
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) total.of[r][j] = add(total.of[r][j], add(even.of[r][j], odd.of[r][j]));
      store(total, out);
    }
  }
}

template <bool Single, int Tile, class V>
void product(const Product<V>& p) {
  constexpr int kBlocksAtOnce = 4;
  for (int begin = 0; begin < p.blocks.count; begin += kBlocksAtOnce) {
    const int rest = p.blocks.count - begin, end = begin + (rest < kBlocksAtOnce ? rest : kBlocksAtOnce);
    int vector = 0;
    if (p.rows == 1)
      for (; vector < p.vectors; vector += Tile) product_tile<Single, 1, Tile>(p, 0, vector, begin, end);
    for (; vector + 2 <= p.vectors; vector += 2)
      for (int row = 0; row < p.rows; row += Tile / 2) product_tile<Single, Tile / 2, 2>(p, row, vector, begin, end);
    if (vector < p.vectors)
      for (int row = 0; row < p.rows; row += Tile) product_tile<Single, Tile, 1>(p, row, vector, begin, end);
  }
}

// As the input of a matrix product.
template <bool Single>
inline Lanes as_input(Lanes x) {
  if constexpr (Single) {
    return x;
  } else {
    return from_bits(shift_left<16>(rounded_bf16(x)));
  }
}

template <bool Single>
inline void widen_row(const std::byte* from, int n, float* to) {
  for (int i = 0; i < n; i += Lanes::kCount) {
    if constexpr (Single) {
      load_some(reinterpret_cast<const float*>(from) + i, n - i).store(to + i);
    } else {
      const std::byte* p = from + 2 * static_cast<ptrdiff_t>(i);
      const LaneInts halves = n - i >= Lanes::kCount ? LaneInts::load_halves(p) : LaneInts::load_halves_part(p, n - i);
      from_bits(shift_left<16>(halves)).store(to + i);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
