// How several residual streams of a token become the input of a sublayer, and take its output back
// (manifold-constrained hyper-connections, GLM-5.3).
//
// From the `count` streams X_i a sublayer's own matrix makes count * (count + 2) scores m: of the input, of the output,
// and of the streams among themselves [from][to]. With a scale s and biases b for each of the three,
//   pre = sigmoid(m s + b) + eps, post = 2 sigmoid(m s + b), C = softmax over `to` of (m s + b), + eps,
// after which the columns of C (over `from`) are divided by their sums + eps, then rows and columns in turns
// (Sinkhorn), `iterations` times the columns in all. The input is sum_i pre_i X_i; behind the sublayer
// X_j = sum_i C_ij X_i + post_j output. Pure, plain fp32 code in one fixed order, the same for every instruction set
// (numerics rule 17). Safe from any thread. Source: transformers' Glm5NextTextHyperConnection.
#pragma once

#include "quire/error.h"

namespace quire::kernels {

inline constexpr int kMostStreams = 8;

struct StreamShape {
  int count = 0;       // 2 to kMostStreams
  int iterations = 0;  // 1 to 100
  float epsilon = 0;

  int scores() const { return count * (count + 2); }
};

// kUnsupported, naming the number and what is allowed.
Result<void> check_stream_shape(const StreamShape& shape);

// What scores become: pre [count], then for each stream of the output its parts of the streams before, and of the
// sublayer's output, [count][count + 1]. `scale` has 3 numbers, `bias` and `out` as many as `scores`, in whose place
// `out` may be. A score that is no number makes numbers of its own row so alone.
void stream_factors(const StreamShape& shape, const float* scores, const float* scale, const float* bias, float* out);

}  // namespace quire::kernels
