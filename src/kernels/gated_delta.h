// The gated delta rule: a layer that keeps one state of fixed size a sequence instead of keys and values.
//
// There are `heads` heads of values; heads / key_heads of them share a key head, whose q and k they use. For every
// head, token by token, in one fixed order, whatever the step's size (numerics rule 9), all in fp32:
//   x = silu(conv(q, k, v))       causal, depthwise, over the last `conv_width` tokens
//   q, k = x / sqrt(sum(x^2) + 1e-6), q * key_dim^-1/2
//   S *= decay; S += k (sigmoid(b) * (v - S^T k))^T; out = S^T q
// A head decays as a whole, by exp(-rate * softplus(a + dt_bias)), or each channel of its key by a number of its own,
// exp(decay_floor * sigmoid(rate * (a + dt_bias))). Sources: "Gated Delta Networks" (Yang et al., 2024), the layer of
// Qwen3-Next; "Kimi Linear" (2025), the layer of GLM-5.3. Every instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

struct GatedDeltaShape {
  int heads = 0;      // of values
  int key_heads = 0;  // divides heads
  // Whether head h uses key head h % key_heads; otherwise neighbours share one, h / (heads / key_heads).
  bool tiled = false;
  int key_dim = 0;     // 1 to 256
  int value_dim = 0;   // 1 to 256
  int conv_width = 0;  // 1 to 8
  // The logarithm that decays of channels stay above, -100 at least; 0: heads decay as a whole.
  float decay_floor = 0;

  bool decays_by_channel() const { return decay_floor < 0; }
  int decays() const { return decays_by_channel() ? heads * key_dim : heads; }
  int heads_per_key() const { return heads / key_heads; }
  int key_rows() const { return key_heads * key_dim; }
  int value_rows() const { return heads * value_dim; }
  int channels() const { return 2 * key_rows() + value_rows(); }
};

// kUnsupported, naming the value and what is allowed, unless the kernel can do it.
Result<void> check_gated_delta_shape(const GatedDeltaShape& shape);

// Numbers of a state: for each key head the last conv_width - 1 inputs of its channels [token][q, k, v of its heads],
// then S [key_dim][value_dim] of each of its heads.
size_t gated_delta_state_size(const GatedDeltaShape& shape);

// Rows [first_row, first_row + num_rows) of the step are consecutive tokens of one sequence. `from` is the state before
// the first of them, null at the sequence's start; `to` gets the one behind the last, and may be `from`.
struct GatedDeltaSequence {
  const float* from = nullptr;
  float* to = nullptr;
  int first_row = 0;
  int num_rows = 0;
};

struct GatedDeltaArgs {
  GatedDeltaShape shape;
  const float* conv = nullptr;     // [conv_width][channels], the newest token's weights last
  const float* rate = nullptr;     // [heads], not negative
  const float* dt_bias = nullptr;  // [heads], or [heads][key_dim] of channels
  const float* x = nullptr;        // rows: q of the key heads, k of the key heads, v of the heads
  const float* b = nullptr;        // rows of [heads]
  size_t stride = 0;               // floats, from row to row of x and b
  const float* a = nullptr;        // rows as dt_bias
  size_t a_stride = 0;
  float* out = nullptr;  // rows of [heads][value_dim]
  size_t out_stride = 0;
};

void gated_delta(const KernelTable& table, const GatedDeltaArgs& args, std::span<const GatedDeltaSequence> sequences,
                 ThreadPool& pool);

}  // namespace quire::kernels
