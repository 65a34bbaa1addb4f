#include "kernels/gated_delta.h"

#include <fmt/format.h>

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

int head_channels(const GatedDeltaShape& s) { return 2 * s.key_dim + s.heads_per_key() * s.value_dim; }

// One key head of one sequence with the heads that use it, token by token; `state` is changed in place.
class KeyHead {
 public:
  KeyHead(const GatedDeltaArgs& args, int key_head, float* state)
      : args_(args),
        shape_(args.shape),
        key_head_(key_head),
        keys_(args.shape.key_dim),
        values_(args.shape.value_dim),
        tail_(state) {
    s_ = state + static_cast<ptrdiff_t>(shape_.conv_width - 1) * head_channels(shape_);
  }

  void token(int row) {
    const auto at = static_cast<size_t>(row) * args_.stride;
    const float* x = args_.x + at;
    convolve(x, key_head_ * keys_, keys_, 0, q_);
    convolve(x, shape_.key_rows() + key_head_ * keys_, keys_, keys_, k_);
    normalise(q_, keys_, 1 / std::sqrt(static_cast<float>(keys_)));
    normalise(k_, keys_, 1);
    for (int i = 0; i < shape_.heads_per_key(); i++) {
      const int head = shape_.tiled ? i * shape_.key_heads + key_head_ : key_head_ * shape_.heads_per_key() + i;
      convolve(x, 2 * shape_.key_rows() + head * values_, values_, 2 * keys_ + i * values_, v_);
      const auto h = static_cast<size_t>(head);
      const float step = args_.a[at + h] + args_.dt_bias[h];
      const float decay = std::isnan(step) ? step : exp(-args_.rate[h] * softplus(step));
      float* s = s_ + static_cast<ptrdiff_t>(i) * keys_ * values_;
      update(s, decay, sigmoid(args_.b[at + h]));
      read(s, args_.out + static_cast<size_t>(row) * args_.out_stride + h * static_cast<size_t>(values_));
    }
  }

 private:
  // Channels [first, first + count), which lie at `place` in the tail. Oldest token first; then the tail moves on by
  // one token.
  void convolve(const float* row, int first, int count, int place, float* out) {
    const int width = shape_.conv_width, channels = head_channels(shape_);
    for (int c = 0; c < count; c++) {
      const float* w = args_.conv + static_cast<ptrdiff_t>(first + c) * width;
      float* tail = tail_ + place + c;
      const float newest = row[first + c];
      float acc = 0;
      for (int t = 0; t + 1 < width; t++) acc = std::fma(w[t], tail[t * channels], acc);
      acc = std::fma(w[width - 1], newest, acc);
      out[c] = acc / (1 + exp(-acc));
      for (int t = 0; t + 2 < width; t++) tail[t * channels] = tail[(t + 1) * channels];
      if (width > 1) tail[(width - 2) * channels] = newest;
    }
  }

  void update(float* s, float decay, float beta) const {
    float seen[kMaxDim] = {};  // S^T k
    for (int i = 0; i < keys_; i++) {
      float* line = s + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) {
        line[j] *= decay;
        seen[j] = std::fma(line[j], k_[i], seen[j]);
      }
    }
    for (int j = 0; j < values_; j++) seen[j] = beta * (v_[j] - seen[j]);
    for (int i = 0; i < keys_; i++) {
      float* line = s + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) line[j] = std::fma(k_[i], seen[j], line[j]);
    }
  }

  void read(const float* s, float* out) const {
    std::fill_n(out, values_, 0.0F);
    for (int i = 0; i < keys_; i++) {
      const float* line = s + static_cast<ptrdiff_t>(i) * values_;
      for (int j = 0; j < values_; j++) out[j] = std::fma(line[j], q_[i], out[j]);
    }
  }

  const GatedDeltaArgs& args_;
  const GatedDeltaShape& shape_;
  int key_head_, keys_, values_;
  float* tail_;
  float* s_;
  float q_[kMaxDim], k_[kMaxDim], v_[kMaxDim];  // of the token and head
};

size_t key_head_state_size(const GatedDeltaShape& s) {
  return static_cast<size_t>(s.conv_width - 1) * static_cast<size_t>(head_channels(s)) +
         static_cast<size_t>(s.heads_per_key()) * static_cast<size_t>(s.key_dim) * static_cast<size_t>(s.value_dim);
}

}  // namespace

Result<void> check_gated_delta_shape(const GatedDeltaShape& s) {
  constexpr int kMaxHeads = 1 << 16;
  if (auto ok = check_ranges("gated delta", {{"heads", s.heads, 1, kMaxHeads},
                                             {"key heads", s.key_heads, 1, kMaxHeads},
                                             {"key dimension", s.key_dim, 1, kMaxDim},
                                             {"value dimension", s.value_dim, 1, kMaxDim},
                                             {"convolution", s.conv_width, 1, kMaxConv}});
      !ok)
    return ok;
  if (s.heads % s.key_heads == 0) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("gated delta: {} heads are no multiple of {} key heads", s.heads, s.key_heads), "key heads");
}

size_t gated_delta_state_size(const GatedDeltaShape& shape) {
  return static_cast<size_t>(shape.key_heads) * key_head_state_size(shape);
}

void gated_delta(const GatedDeltaArgs& args, std::span<const GatedDeltaSequence> sequences, ThreadPool& pool) {
  const int key_heads = args.shape.key_heads;
  const size_t size = key_head_state_size(args.shape);
  pool.split(key_heads * static_cast<int>(sequences.size()), [&](int begin, int end) {
    for (int item = begin; item < end; item++) {
      const GatedDeltaSequence& sequence = sequences[static_cast<size_t>(item / key_heads)];
      const int key_head = item % key_heads;
      float* state = sequence.to + static_cast<size_t>(key_head) * size;
      if (sequence.from == nullptr) {
        std::fill_n(state, size, 0.0F);
      } else if (sequence.from != sequence.to) {
        std::memcpy(state, sequence.from + static_cast<size_t>(key_head) * size, size * sizeof(float));
      }
      KeyHead run(args, key_head, state);
      for (int r = 0; r < sequence.num_rows; r++) run.token(sequence.first_row + r);
    }
  });
}

}  // namespace quire::kernels
