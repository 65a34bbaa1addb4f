// The kernels of gated_delta_kernels.h for any sixteen lanes: include after a math_lanes.h. Lanes are channels of the
// convolution and dimensions of values.
#pragma once

#include "kernels/gated_delta_kernels.h"
#include "kernels/shared/lane_rows.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

inline float exp_of(float x) { return first_of(exp_lanes(Lanes::set(x))); }

// log(1 + y) for y in [0, 1]; the quotient takes back what the rounding of 1 + y loses.
inline float log_one_plus(float y) {
  const float u = 1 + y;
  return u == 1 ? y : first_of(log_lanes(Lanes::set(u))) * (y / (u - 1));
}

inline float softplus(float x) { return (x < 0 ? 0 : x) + log_one_plus(exp_of(-__builtin_fabsf(x))); }

// Zeros follow the n numbers up to whole lanes.
inline void normalise(float* x, int n, float factor) {
  Lanes sum = Lanes::set(0);
  for (int i = 0; i < n; i += Lanes::kCount) {
    const Lanes v = Lanes::load(x + i);
    sum = fma(v, v, sum);
  }
  const Lanes inverse = Lanes::set(1 / __builtin_sqrtf(tree_sum(sum) + 1e-6F));
  for (int i = 0; i < n; i += Lanes::kCount) mul(mul(Lanes::load(x + i), inverse), Lanes::set(factor)).store(x + i);
}

class KeyHead {
 public:
  explicit KeyHead(const KeyHeadArgs& a)
      : a_(a),
        tail_channels_(2 * a.key_dim + a.heads * a.value_dim),
        s_(a.state + static_cast<ptrdiff_t>(a.conv_width - 1) * tail_channels_) {}

  void token(int row) {
    const auto at = static_cast<size_t>(row) * a_.stride;
    const float* x = a_.x + at;
    const int keys = a_.key_dim, values = a_.value_dim;
    convolve(x, a_.first_q, keys, 0, q_);
    convolve(x, a_.first_k, keys, keys, k_);
    normalise(q_, keys, 1 / __builtin_sqrtf(static_cast<float>(keys)));
    normalise(k_, keys, 1);
    for (int i = 0; i < a_.heads; i++) {
      const int head = a_.first_head + i * a_.head_step;
      convolve(x, a_.first_v + head * values, values, 2 * keys + i * values, v_);
      set_decays(row, head);
      const float beta = first_of(sigmoid_lanes(Lanes::set(a_.b[at + static_cast<size_t>(head)])));
      update(s_ + static_cast<ptrdiff_t>(i) * keys * values, beta,
             a_.out + static_cast<size_t>(row) * a_.out_stride + static_cast<ptrdiff_t>(head) * values);
    }
  }

 private:
  // Channels [first, first + count), which lie at `place` in the tail. Oldest token first; then the tail moves on by
  // one token.
  void convolve(const float* row, int first, int count, int place, float* out) {
    const int width = a_.conv_width;
    for (int c = 0; c < count; c += Lanes::kCount) {
      const int n = count - c;
      const float* w = a_.conv + first + c;
      float* tail = a_.state + place + c;
      const Lanes newest = load_some(row + first + c, n);
      Lanes acc = Lanes::set(0);
      for (int t = 0; t + 1 < width; t++)
        acc = fma(load_some(w + static_cast<ptrdiff_t>(t) * a_.channels, n),
                  load_some(tail + static_cast<ptrdiff_t>(t) * tail_channels_, n), acc);
      acc = fma(load_some(w + static_cast<ptrdiff_t>(width - 1) * a_.channels, n), newest, acc);
      silu_lanes(acc).store(out + c);
      for (int t = 0; t + 1 < width; t++, tail += tail_channels_)
        store_some(t + 2 < width ? load_some(tail + tail_channels_, n) : newest, tail, n);
    }
  }

  void set_decays(int row, int head) {
    const float* a = a_.a + static_cast<size_t>(row) * a_.a_stride;
    const int keys = a_.key_dim;
    if (a_.decay_floor == 0) {
      const Lanes decay = Lanes::set(exp_of(-a_.rate[head] * softplus(a[head] + a_.dt_bias[head])));
      for (int c = 0; c < keys; c += Lanes::kCount) decay.store(decays_ + c);
      return;
    }
    const ptrdiff_t first = static_cast<ptrdiff_t>(head) * keys;
    const Lanes rate = Lanes::set(a_.rate[head]), floor = Lanes::set(a_.decay_floor);
    for (int c = 0; c < keys; c += Lanes::kCount) {
      const Lanes x = add(load_some(a + first + c, keys - c), load_some(a_.dt_bias + first + c, keys - c));
      exp_lanes(mul(floor, sigmoid_lanes(mul(rate, x)))).store(decays_ + c);
    }
  }

  void update(float* s, float beta, float* out) const {
    constexpr int kWide = 4;
    const int values = a_.value_dim;
    int j = 0;
    for (; j + kWide * Lanes::kCount <= values; j += kWide * Lanes::kCount) columns<kWide, true>(s, j, beta, out);
    for (; j + Lanes::kCount <= values; j += Lanes::kCount) columns<1, true>(s, j, beta, out);
    if (j < values) columns<1, false>(s, j, beta, out);
  }

  // Some columns of S, which stay in the first-level cache: decay, S^T k, the change, S^T q.
  template <int N, bool Whole>
  void columns(float* s, int first, float beta, float* out) const {
    const int values = a_.value_dim, part = values - first;
    const auto decayed = [part](const float* p, Lanes d) {
      return mul(Whole ? Lanes::load(p) : Lanes::load_part(p, part), d);
    };
    s += first;
    Lanes change[N], sum[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) change[n] = sum[n] = Lanes::set(0);
    const float* line = s;
    for (int i = 0; i < a_.key_dim; i++, line += values) {
      const Lanes k = Lanes::set(k_[i]), d = Lanes::set(decays_[i]);
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) change[n] = fma(decayed(line + n * Lanes::kCount, d), k, change[n]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
      change[n] = mul(Lanes::set(beta), sub(Lanes::load(v_ + first + n * Lanes::kCount), change[n]));
    for (int i = 0; i < a_.key_dim; i++, s += values) {
      const Lanes k = Lanes::set(k_[i]), q = Lanes::set(q_[i]), d = Lanes::set(decays_[i]);
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) {
        float* p = s + n * Lanes::kCount;
        const Lanes x = fma(k, change[n], decayed(p, d));
        if constexpr (Whole) {
          x.store(p);
        } else {
          x.store_part(p, part);
        }
        sum[n] = fma(x, q, sum[n]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
      float* p = out + first + n * Lanes::kCount;
      if constexpr (Whole) {
        sum[n].store(p);
      } else {
        sum[n].store_part(p, part);
      }
    }
  }

  const KeyHeadArgs& a_;
  int tail_channels_;
  float* s_;
  // Of the token and head.
  alignas(64) float q_[kMostGatedDim], k_[kMostGatedDim], v_[kMostGatedDim], decays_[kMostGatedDim];
};

void key_head(const KeyHeadArgs& args) {
  KeyHead head(args);
  for (int row = 0; row < args.rows; row++) head.token(row);
}

constexpr GatedDeltaKernels kGatedDeltaKernels = {key_head};

}  // namespace
}  // namespace quire::kernels
