// The kernels of latent_kernels.h for any sixteen lanes: include after a math_lanes.h.
#pragma once

#include "kernels/latent_kernels.h"
#include "kernels/shared/product_tiles.h"

namespace quire::kernels {
namespace {

// ---------------------------------------------------------------- queries

// Dimension d of head h in a row of queries.
inline ptrdiff_t query_place(int row_dim, int h, int d) {
  return (static_cast<ptrdiff_t>(h / kHeadLanes) * row_dim + d) * kHeadLanes + h % kHeadLanes;
}

// The dimensions with rope of one row.
template <bool Single>
void rope_queries(const LatentAbsorbArgs& a, const float* q, float* queries) {
  const int dim = a.nope_dim + a.rope_dim;
  for (int h = 0; h < a.heads; h++) {
    const float* from = q + static_cast<ptrdiff_t>(h) * dim + a.nope_dim;
    float* to = queries + query_place(a.rank + a.rope_dim, h, a.rank);
    for (int i = 0; i < a.rope_dim; i += Lanes::kCount) {
      const int n = a.rope_dim - i < Lanes::kCount ? a.rope_dim - i : Lanes::kCount;
      alignas(64) float x[Lanes::kCount];
      as_input<Single>(load_some(from + i, n)).store(x);
      for (int l = 0; l < n; l++) to[(i + l) * kHeadLanes] = x[l];
    }
  }
}

// The expansion holds numbers of type V.
template <bool Single, int Tile, class V>
void latent_absorb(const LatentAbsorbArgs& a) {
  const int row_dim = a.rank + a.rope_dim, padded_nope = up_to_lanes(a.nope_dim), padded_rank = up_to_lanes(a.rank);
  const int first = a.begin * Lanes::kCount, width = (a.end - a.begin) * Lanes::kCount;
  const int count = (a.end * Lanes::kCount < a.rank ? a.end * Lanes::kCount : a.rank) - first;
  const auto row_size = static_cast<ptrdiff_t>(up_to_lanes(a.heads)) * row_dim;
  for (int h = 0; h < a.heads; h++) {
    for (int r = 0; r < a.rows; r++) {
      const float* q =
          a.q + static_cast<size_t>(r) * a.q_stride + static_cast<ptrdiff_t>(h) * (a.nope_dim + a.rope_dim);
      for (int i = 0; i < a.nope_dim; i += Lanes::kCount)
        as_input<Single>(load_some(q + i, a.nope_dim - i)).store(a.x + static_cast<ptrdiff_t>(r) * padded_nope + i);
    }
    product<Single, Tile>(
        Product<V>{.rows = a.rows,
                   .vectors = a.end - a.begin,
                   .x = a.x,
                   .x_row = padded_nope,
                   .x_term = 1,
                   .v = static_cast<const V*>(a.expansion) + static_cast<size_t>(h) * a.expansion_stride + first,
                   .v_term = padded_rank,
                   .out = a.sums,
                   .out_row = width,
                   .blocks = a.blocks});
    for (int r = 0; r < a.rows; r++) {
      float* sums = a.sums + static_cast<ptrdiff_t>(r) * width;
      float* to = a.queries + r * row_size + query_place(row_dim, h, first);
      for (int i = 0; i < width; i += Lanes::kCount) as_input<Single>(Lanes::load(sums + i)).store(sums + i);
      for (int i = 0; i < count; i++) to[static_cast<ptrdiff_t>(i) * kHeadLanes] = sums[i];
    }
  }
  if (a.begin == 0)
    for (int r = 0; r < a.rows; r++)
      rope_queries<Single>(a, a.q + static_cast<size_t>(r) * a.q_stride, a.queries + r * row_size);
}

// ---------------------------------------------------------------- chunk

// Turns the products of q and k of sixteen heads into weights; rule 6. A score that is NaN makes its row NaN, also
// beside others that are -infinity.
template <bool Single>
void softmax_heads(const LatentChunkArgs& a, SoftmaxState* state) {
  const Lanes scale = Lanes::set(a.scale), log2e = Lanes::set(kLog2e), zero = Lanes::set(0);
  Lanes top = Lanes::set(-kInfinity);
  LaneMask numbers = greater_equal(zero, zero);
  for (int i = 0; i < a.count; i++) {
    float* p = a.weights + static_cast<ptrdiff_t>(i) * kHeadLanes;
    const Lanes s = mul(mul(scale, Lanes::load(p)), log2e);
    numbers = both(numbers, greater_equal(s, s));
    top = max(s, top);
    s.store(p);
  }
  top = select(numbers, top, zero);
  Lanes sums[16];
  for (Lanes& sum : sums) sum = zero;
  for (int i = 0; i < a.count; i++) {
    float* p = a.weights + static_cast<ptrdiff_t>(i) * kHeadLanes;
    const Lanes s = Lanes::load(p);
    const Lanes weight = select(greater_equal(s, s), exp2_lanes(sub(s, top)), s);
    Lanes& sum = sums[a.places[i] % 16];
    sum = add(sum, weight);
    as_input<Single>(weight).store(p);
  }
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) sums[i] = add(sums[i], sums[i + step]);
  alignas(64) float m[Lanes::kCount], l[Lanes::kCount];
  top.store(m);
  sums[0].store(l);
  for (int h = 0; h < kHeadLanes; h++) state[h] = {m[h], l[h]};
}

template <bool Single, int Tile>
void latent_chunk(const LatentChunkArgs& a) {
  const int key_size = up_to_lanes(a.row_dim), rank = up_to_lanes(a.rank);
  for (int i = 0; i < a.count; i++)
    widen_row<Single>(a.rows[i], a.row_dim, a.keys + static_cast<ptrdiff_t>(i) * key_size);
  for (int h = 0; h < a.heads; h += kHeadLanes) {
    product<Single, Tile>(Product<float>{.rows = a.count,
                                         .vectors = 1,
                                         .x = a.keys,
                                         .x_row = key_size,
                                         .x_term = 1,
                                         .v = a.queries + query_place(a.row_dim, h, 0),
                                         .v_term = kHeadLanes,
                                         .out = a.weights,
                                         .out_row = kHeadLanes,
                                         .blocks = a.dim_blocks});
    softmax_heads<Single>(a, a.state + h);
    product<Single, Tile>(Product<float>{.rows = a.heads - h < kHeadLanes ? a.heads - h : kHeadLanes,
                                         .vectors = rank / Lanes::kCount,
                                         .x = a.weights,
                                         .x_row = 1,
                                         .x_term = kHeadLanes,
                                         .v = a.keys,
                                         .v_term = key_size,
                                         .out = a.out + static_cast<ptrdiff_t>(h) * rank,
                                         .out_row = rank,
                                         .blocks = a.key_blocks});
  }
}

// ---------------------------------------------------------------- the end

// A side without a maximum is empty and changes nothing.
inline void latent_merge(SoftmaxState& to, float* to_sums, const SoftmaxState& more, const float* sums, int rank) {
  if (more.m == -kInfinity) return;
  const Lanes zero = Lanes::set(0);
  if (to.m == -kInfinity) {
    to = more;
    for (int i = 0; i < rank; i += Lanes::kCount) add(Lanes::load(sums + i), zero).store(to_sums + i);
    return;
  }
  const float top = to.m < more.m ? more.m : to.m;
  const Lanes a = exp2_lanes(Lanes::set(to.m - top)), b = exp2_lanes(Lanes::set(more.m - top));
  to = {top, first_of(fma(Lanes::set(more.l), b, mul(Lanes::set(to.l), a)))};
  for (int i = 0; i < rank; i += Lanes::kCount)
    fma(add(Lanes::load(sums + i), zero), b, mul(Lanes::load(to_sums + i), a)).store(to_sums + i);
}

template <bool Single, int Tile, class V>
void latent_expand(const LatentExpandArgs& a) {
  const int rank = up_to_lanes(a.rank), values = up_to_lanes(a.value_dim);
  for (int r = 0; r < a.rows; r++) {
    const SoftmaxState& state = a.state[static_cast<size_t>(r) * a.state_stride];
    const float* sums = a.sums + static_cast<size_t>(r) * a.sums_stride;
    const bool empty = state.m == -kInfinity;  // then NaN comes out
    const Lanes inverse = Lanes::set(1 / (empty ? 0 : state.l));
    for (int i = 0; i < rank; i += Lanes::kCount)
      as_input<Single>(mul(empty ? Lanes::set(0) : Lanes::load(sums + i), inverse))
          .store(a.x + static_cast<ptrdiff_t>(r) * rank + i);
  }
  product<Single, Tile>(Product<V>{.rows = a.rows,
                                   .vectors = values / Lanes::kCount,
                                   .x = a.x,
                                   .x_row = rank,
                                   .x_term = 1,
                                   .v = static_cast<const V*>(a.expansion),
                                   .v_term = values,
                                   .out = a.padded,
                                   .out_row = values,
                                   .blocks = a.blocks});
  for (int r = 0; r < a.rows; r++)
    __builtin_memcpy(a.out + static_cast<size_t>(r) * a.out_stride, a.padded + static_cast<ptrdiff_t>(r) * values,
                     static_cast<size_t>(a.value_dim) * sizeof(float));
}

template <int Tile>
constexpr LatentKernels kLatentKernels = {
    .bf16 = latent_chunk<false, Tile>,
    .f32 = latent_chunk<true, Tile>,
    .bf16_by_bf16 = {latent_absorb<false, Tile, uint16_t>, latent_expand<false, Tile, uint16_t>},
    .bf16_by_f32 = {latent_absorb<false, Tile, float>, latent_expand<false, Tile, float>},
    .f32_by_f32 = {latent_absorb<true, Tile, float>, latent_expand<true, Tile, float>},
    .merge = latent_merge};

}  // namespace
}  // namespace quire::kernels
