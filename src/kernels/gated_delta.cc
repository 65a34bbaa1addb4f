#include "kernels/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/shape_check.h"

namespace quire::kernels {
namespace {

constexpr int kMaxDim = 256;
constexpr int kMaxConv = 8;

float sum_of_squares(const float* x, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; i++) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  return sum_of_lanes(lanes);
}

// log(1 + y) for y in [0, 1]; the quotient takes back what the rounding of 1 + y loses.
float log_one_plus(float y) {
  const float u = 1 + y;
  return u == 1 ? y : log(u) * (y / (u - 1));
}

float softplus(float x) { return std::max(x, 0.0F) + log_one_plus(exp(-std::abs(x))); }

void normalise(float* x, int n, float factor) {
  const float inverse = 1 / std::sqrt(sum_of_squares(x, n) + 1e-6F);
  for (int i = 0; i < n; i++) x[i] = x[i] * inverse * factor;
}

// One head of one sequence, token by token; `state` is changed in place.
class Head {
 public:
  Head(const GatedDeltaArgs& args, int head, float* state)
      : args_(args), head_(head), keys_(args.shape.key_dim), values_(args.shape.value_dim), tail_(state) {
    s_ = state + static_cast<ptrdiff_t>(args.shape.conv_width - 1) * args.shape.head_channels();
  }

  void token(int row) {
    const auto at = static_cast<size_t>(row) * args_.stride;
    convolve(args_.x + at);
    normalise(x_, keys_, 1 / std::sqrt(static_cast<float>(keys_)));
    normalise(x_ + keys_, keys_, 1);
    const float decay = exp(-exp(args_.decay[head_]) * softplus(args_.a[at + index()] + args_.dt_bias[head_]));
    update(decay, sigmoid(args_.b[at + index()]));
    read(args_.out + static_cast<size_t>(row) * args_.out_stride + index() * static_cast<size_t>(values_));
  }

 private:
  size_t index() const { return static_cast<size_t>(head_); }

  // Where channel c of this head (q, then k, then v) lies among all channels.
  int channel(int c) const {
    const int heads = args_.shape.heads;
    if (c < keys_) return head_ * keys_ + c;
    if (c < 2 * keys_) return heads * keys_ + head_ * keys_ + c - keys_;
    return 2 * heads * keys_ + head_ * values_ + c - 2 * keys_;
  }

  // Oldest token first; then the tail moves on by one token.
  void convolve(const float* row) {
    const int width = args_.shape.conv_width, channels = args_.shape.head_channels();
    for (int c = 0; c < channels; c++) {
      const float* w = args_.conv + static_cast<ptrdiff_t>(channel(c)) * width;
      const float newest = row[channel(c)];
      float acc = 0;
      for (int t = 0; t + 1 < width; t++) acc = std::fma(w[t], tail_[t * channels + c], acc);
      acc = std::fma(w[width - 1], newest, acc);
      x_[c] = acc / (1 + exp(-acc));
      for (int t = 0; t + 2 < width; t++) tail_[t * channels + c] = tail_[(t + 1) * channels + c];
      if (width > 1) tail_[(width - 2) * channels + c] = newest;
    }
  }

  void update(float decay, float beta) {
    const float *k = x_ + keys_, *v = x_ + 2 * keys_;
    float seen[kMaxDim] = {};  // S^T k
    for (int i = 0; i < keys_; i++) {
      float* line = s_ + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) {
        line[j] *= decay;
        seen[j] = std::fma(line[j], k[i], seen[j]);
      }
    }
    for (int j = 0; j < values_; j++) seen[j] = beta * (v[j] - seen[j]);
    for (int i = 0; i < keys_; i++) {
      float* line = s_ + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) line[j] = std::fma(k[i], seen[j], line[j]);
    }
  }

  void read(float* out) const {
    std::fill_n(out, values_, 0.0F);
    for (int i = 0; i < keys_; i++) {
      const float* line = s_ + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) out[j] = std::fma(line[j], x_[i], out[j]);
    }
  }

  const GatedDeltaArgs& args_;
  int head_, keys_, values_;
  float* tail_;
  float* s_;
  float x_[3 * kMaxDim];  // q, k, v of the token
};

size_t head_state_size(const GatedDeltaShape& s) {
  return static_cast<size_t>(s.conv_width - 1) * static_cast<size_t>(s.head_channels()) +
         static_cast<size_t>(s.key_dim) * static_cast<size_t>(s.value_dim);
}

}  // namespace

Result<void> check_gated_delta_shape(const GatedDeltaShape& s) {
  return check_ranges("gated delta", {{"heads", s.heads, 1, 1 << 16},
                                      {"key dimension", s.key_dim, 1, kMaxDim},
                                      {"value dimension", s.value_dim, 1, kMaxDim},
                                      {"convolution", s.conv_width, 1, kMaxConv}});
}

size_t gated_delta_state_size(const GatedDeltaShape& shape) {
  return static_cast<size_t>(shape.heads) * head_state_size(shape);
}

void gated_delta(const GatedDeltaArgs& args, std::span<const GatedDeltaSequence> sequences, ThreadPool& pool) {
  const int heads = args.shape.heads;
  const size_t size = head_state_size(args.shape);
  pool.split(heads * static_cast<int>(sequences.size()), [&](int begin, int end) {
    for (int item = begin; item < end; item++) {
      const GatedDeltaSequence& sequence = sequences[static_cast<size_t>(item / heads)];
      const int head = item % heads;
      float* state = sequence.to + static_cast<size_t>(head) * size;
      if (sequence.from == nullptr) {
        std::fill_n(state, size, 0.0F);
      } else if (sequence.from != sequence.to) {
        std::memcpy(state, sequence.from + static_cast<size_t>(head) * size, size * sizeof(float));
      }
      Head run(args, head, state);
      for (int r = 0; r < sequence.num_rows; r++) run.token(sequence.first_row + r);
    }
  });
}

}  // namespace quire::kernels
