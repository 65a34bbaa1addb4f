// The kernels of row_ops.h for any sixteen lanes: include after a math_lanes.h.
#pragma once

#include "kernels/row_ops.h"
#include "kernels/shared/lane_rows.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

// Calls f(lanes of each input, number of lanes) along a row and stores what it returns; the last piece may be short.
template <class F, class... In>
inline void map_row(int n, float* out, F f, const In*... in) {
  int i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) f(Lanes::load(in + i)...).store(out + i);
  if (i < n) f(Lanes::load_part(in + i, n - i)...).store_part(out + i, n - i);
}

inline float sum_of_squares(const float* x, int n) {
  Lanes sum = Lanes::set(0);
  int i = 0;
  for (; i + Lanes::kCount <= n; i += Lanes::kCount) {
    const Lanes v = Lanes::load(x + i);
    sum = fma(v, v, sum);
  }
  if (i < n) {
    const Lanes v = Lanes::load_part(x + i, n - i);
    sum = fma(v, v, sum);
  }
  return tree_sum(sum);
}

void rms_norm(const RmsNormArgs& a) {
  for (int r = 0; r < a.rows; r++) {
    const float* x = a.x + static_cast<size_t>(r) * a.x_stride;
    float* out = a.out + static_cast<size_t>(r) * a.out_stride;
    const float mean = sum_of_squares(x, a.n) / static_cast<float>(a.n);
    const Lanes inverse = Lanes::set(1.0F / __builtin_sqrtf(mean + a.eps));
    if (a.weight == nullptr) {
      map_row(a.n, out, [&](Lanes v) { return mul(v, inverse); }, x);
    } else {
      map_row(a.n, out, [&](Lanes v, Lanes w) { return mul(mul(v, inverse), w); }, x, a.weight);
    }
  }
}

void silu_mul(const float* gate, const float* up, int n, float* out) {
  map_row(n, out, [](Lanes g, Lanes u) { return mul(silu_lanes(g), u); }, gate, up);
}

void gelu_tanh_mul(const float* gate, const float* up, int n, float* out) {
  constexpr float kLinear = 1.59576917F;   // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.0713548139F;  // that times 0.044715
  map_row(
      n, out,
      [](Lanes g, Lanes u) {
        const Lanes twice = mul(g, fma(mul(g, g), Lanes::set(kCubic), Lanes::set(kLinear)));
        const Lanes gelu = div(g, add(Lanes::set(1), exp_lanes(sub(Lanes::set(0), twice))));
        return mul(gelu, u);
      },
      gate, up);
}

void clamped_swiglu(const ClampedSwigluArgs& a) {
  const Lanes zero = Lanes::set(0), one = Lanes::set(1), alpha = Lanes::set(a.alpha), offset = Lanes::set(a.up_offset);
  const Lanes most = Lanes::set(a.limit), least = Lanes::set(-a.limit);
  map_row(
      a.n, a.out,
      [&](Lanes g, Lanes u) {
        g = select(greater(g, most), most, g);
        u = select(greater(u, most), most, select(greater(least, u), least, u));
        const Lanes glu = div(g, add(one, exp_lanes(sub(zero, mul(alpha, g)))));
        return mul(glu, add(u, offset));
      },
      a.gate, a.up);
}

void sigmoid_mul(const float* gate, const float* x, int n, float* out) {
  map_row(
      n, out, [](Lanes g, Lanes v) { return div(v, add(Lanes::set(1), exp_lanes(sub(Lanes::set(0), g)))); }, gate, x);
}

void add_rows(const float* a, const float* b, int n, float* out) {
  map_row(n, out, [](Lanes x, Lanes y) { return add(x, y); }, a, b);
}

void scale_row(const float* x, float factor, int n, float* out) {
  map_row(n, out, [factor](Lanes v) { return mul(v, Lanes::set(factor)); }, x);
}

// All rows are read at a place before any is written there.
void combine_rows(const CombineArgs& a) {
  Lanes x[kMostCombined];
  for (int i = 0; i < a.n; i += Lanes::kCount) {
    for (int r = 0; r < a.inputs; r++) x[r] = load_some(a.x[r] + i, a.n - i);
    const float* factors = a.factors;
    for (int j = 0; j < a.outputs; j++, factors += a.inputs) {
      Lanes sum = mul(Lanes::set(factors[0]), x[0]);
      for (int r = 1; r < a.inputs; r++) sum = fma(Lanes::set(factors[r]), x[r], sum);
      store_some(sum, a.out[j] + i, a.n - i);
    }
  }
}

void soft_cap_row(const float* x, float cap, int n, float* out) {
  const Lanes c = Lanes::set(cap);
  map_row(n, out, [c](Lanes v) { return mul(c, tanh_lanes(div(v, c))); }, x);
}

inline Lanes turned_low(Lanes x1, Lanes x2, Lanes c, Lanes s) { return fma(x1, c, sub(Lanes::set(0), mul(x2, s))); }
inline Lanes turned_high(Lanes x1, Lanes x2, Lanes c, Lanes s) { return fma(x2, c, mul(x1, s)); }

void rope_half(const RopeArgs& a) {
  for (int h = 0; h < a.heads; h++) {
    float* low = a.x + static_cast<size_t>(h) * a.head_stride;
    float* high = low + a.half;
    int i = 0;
    for (; i + Lanes::kCount <= a.half; i += Lanes::kCount) {
      const Lanes x1 = Lanes::load(low + i), x2 = Lanes::load(high + i);
      const Lanes c = Lanes::load(a.cos + i), s = Lanes::load(a.sin + i);
      turned_low(x1, x2, c, s).store(low + i);
      turned_high(x1, x2, c, s).store(high + i);
    }
    if (const int n = a.half - i; n > 0) {
      const Lanes x1 = Lanes::load_part(low + i, n), x2 = Lanes::load_part(high + i, n);
      const Lanes c = Lanes::load_part(a.cos + i, n), s = Lanes::load_part(a.sin + i, n);
      turned_low(x1, x2, c, s).store_part(low + i, n);
      turned_high(x1, x2, c, s).store_part(high + i, n);
    }
  }
}

// Rare models: pairs are taken apart into two short rows, turned, and put back.
void rope_interleaved(const RopeArgs& a) {
  constexpr int kPiece = Lanes::kCount;
  for (int h = 0; h < a.heads; h++) {
    float* x = a.x + static_cast<size_t>(h) * a.head_stride;
    for (int i = 0; i < a.half; i += kPiece) {
      const int n = a.half - i < kPiece ? a.half - i : kPiece;
      float even[kPiece] = {}, odd[kPiece] = {};
      for (int j = 0; j < n; j++) even[j] = x[2 * (i + j)], odd[j] = x[2 * (i + j) + 1];
      const Lanes x1 = Lanes::load(even), x2 = Lanes::load(odd);
      const Lanes c = Lanes::load_part(a.cos + i, n), s = Lanes::load_part(a.sin + i, n);
      turned_low(x1, x2, c, s).store(even);
      turned_high(x1, x2, c, s).store(odd);
      for (int j = 0; j < n; j++) x[2 * (i + j)] = even[j], x[2 * (i + j) + 1] = odd[j];
    }
  }
}

constexpr RowKernels kRowKernels = {rms_norm,  silu_mul,     gelu_tanh_mul, clamped_swiglu, sigmoid_mul,     add_rows,
                                    scale_row, combine_rows, soft_cap_row,  rope_half,      rope_interleaved};

}  // namespace
}  // namespace quire::kernels
