// The kernels of index_kernels.h for any sixteen lanes: include after a math_lanes.h. Lanes are numbers of a row, heads
// of a product, and keys where heads are added up.
#pragma once

#include "kernels/index_kernels.h"
#include "kernels/shared/math_body.h"
#include "kernels/shared/product_tiles.h"

namespace quire::kernels {
namespace {

inline Lanes zero_from(Lanes x, int n) {
  return n >= Lanes::kCount ? x : select(greater(LaneInts::set(n), LaneInts::iota(0)), x, Lanes::set(0));
}

void index_norm(const IndexNormArgs& a) {
  Lanes sum = Lanes::set(0), squares = Lanes::set(0);
  for (int i = 0; i < a.n; i += Lanes::kCount) sum = add(sum, load_some(a.x + i, a.n - i));
  const auto count = static_cast<float>(a.n);
  const Lanes mean = Lanes::set(tree_sum(sum) / count);
  for (int i = 0; i < a.n; i += Lanes::kCount) {
    const Lanes d = zero_from(sub(load_some(a.x + i, a.n - i), mean), a.n - i);
    squares = add(squares, mul(d, d));
    store_some(d, a.out + i, a.n - i);
  }
  const Lanes inverse = Lanes::set(1 / __builtin_sqrtf(tree_sum(squares) / count + a.epsilon));
  for (int i = 0; i < a.n; i += Lanes::kCount) {
    const int n = a.n - i;
    const Lanes x = mul(load_some(a.out + i, n), inverse);
    store_some(fma(x, load_some(a.weight + i, n), load_some(a.bias + i, n)), a.out + i, n);
  }
}

void index_pool(const IndexPoolArgs& a) {
  for (int c = 0; c < a.dim; c += Lanes::kCount) {
    const int n = a.dim - c;
    const auto key = [&](int i) { return load_some(a.rows + static_cast<ptrdiff_t>(2 * i) * a.dim + c, n); };
    const auto logit = [&](int i) {
      return add(load_some(a.rows + static_cast<ptrdiff_t>(2 * i + 1) * a.dim + c, n),
                 load_some(a.bias + static_cast<ptrdiff_t>(i) * a.dim + c, n));
    };
    Lanes largest = Lanes::set(-kInfinity), sum = Lanes::set(0), pooled = Lanes::set(0);
    for (int i = 0; i < a.pool; i++) largest = max(logit(i), largest);
    for (int i = 0; i < a.pool; i++) {
      const Lanes weight = exp_lanes(sub(logit(i), largest));
      sum = add(sum, weight);
      pooled = fma(weight, key(i), pooled);
    }
    store_some(div(pooled, sum), a.out + c, n);
  }
}

template <bool Single, int Tile>
void index_score(const IndexScoreArgs& a) {
  const int heads = up_to_lanes(a.heads), dim = up_to_lanes(a.dim);
  for (int i = 0; i < a.count; i++) widen_row<Single>(a.keys[i], a.dim, a.wide + static_cast<ptrdiff_t>(i) * dim);
  const TermBlock all = {0, a.dim, 0, 0, 1};
  product<true, Tile>(Product<float>{.rows = a.count,
                                     .vectors = heads / Lanes::kCount,
                                     .x = a.wide,
                                     .x_row = dim,
                                     .x_term = 1,
                                     .v = a.queries,
                                     .v_term = heads,
                                     .out = a.dots,
                                     .out_row = heads,
                                     .blocks = {&all, 1}});
  for (int i = 0; i < a.count; i += Lanes::kCount) {
    const int n = a.count - i;
    Lanes total = Lanes::set(0);
    for (int h = 0; h < a.heads; h++) {
      alignas(64) float dots[Lanes::kCount] = {};
      for (int l = 0; l < Lanes::kCount && l < n; l++) dots[l] = a.dots[static_cast<ptrdiff_t>(i + l) * heads + h];
      // In this order a NaN stays.
      total = fma(Lanes::set(a.weights[h]), max(Lanes::set(0), Lanes::load(dots)), total);
    }
    store_some(total, a.scores + i, n);
  }
}

template <int Tile>
constexpr IndexKernels kIndexKernels = {index_norm, index_pool, index_score<false, Tile>, index_score<true, Tile>};

}  // namespace
}  // namespace quire::kernels
