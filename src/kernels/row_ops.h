// Operations on fp32 rows between the matrix products: norms, activations, rope, sums.
//
// Every result depends on its own row alone and has the same bits on every instruction set. Sums over a row are 16
// partial sums (lane = index mod 16, ascending), then the tree i+8, i+4, i+2, i+1 (numerics rule 5). Rows need no
// alignment. `out` may be an input row itself, but not overlap one otherwise. Safe from any thread.
#pragma once

#include <cstddef>

namespace quire::kernels {

struct RmsNormArgs {
  const float* x;
  size_t x_stride;      // floats from one row to the next
  const float* weight;  // n numbers, a model's "1 +" already added; null: none
  float eps;
  int rows;
  int n;
  float* out;
  size_t out_stride;
};

struct RopeArgs {
  float* x;  // heads, turned in place
  size_t head_stride;
  int heads;
  const float* cos;  // half numbers
  const float* sin;
  int half;
};

struct ClampedSwigluArgs {
  const float* gate;
  const float* up;
  float alpha;
  float limit;  // of gate from above, of up from both sides
  float up_offset;
  int n;
  float* out;
};

inline constexpr int kMostCombined = 9;

// out_j = sum over i, ascending, of factors[j][i] * x_i: the first product, the others by fma.
struct CombineArgs {
  const float* const* x;
  int inputs;  // 1 to kMostCombined
  float* const* out;
  int outputs;
  const float* factors;  // [outputs][inputs]
  int n;
};

struct RowKernels {
  // y = (x * inverse) * weight, inverse = 1 / sqrt(sum(x^2) / n + eps); x^2 enters its lane by fma. Also for heads.
  void (*rms_norm)(const RmsNormArgs& args);
  // (gate * sigmoid(gate)) * up, as (gate / (1 + exp(-gate))) * up.
  void (*silu_mul)(const float* gate, const float* up, int n, float* out);
  // gelu(gate) * up in the tanh form: 0.5 * (1 + tanh(u)) is computed as 1 / (1 + exp(-2u)),
  // 2u = gate * fma(gate^2, 2 * sqrt(2 / pi) * 0.044715, 2 * sqrt(2 / pi)).
  void (*gelu_tanh_mul)(const float* gate, const float* up, int n, float* out);
  // g = min(gate, limit) and u = min(max(up, -limit), limit): (g / (1 + exp(-(alpha * g)))) * (u + up_offset). A NaN
  // stays one.
  void (*clamped_swiglu)(const ClampedSwigluArgs& args);
  // x * sigmoid(gate), as x / (1 + exp(-gate)).
  void (*sigmoid_mul)(const float* gate, const float* x, int n, float* out);
  void (*add)(const float* a, const float* b, int n, float* out);
  void (*scale)(const float* x, float factor, int n, float* out);
  void (*combine)(const CombineArgs& args);
  // cap * tanh(x / cap)
  void (*soft_cap)(const float* x, float cap, int n, float* out);
  // Pairs (i, i + half); see rope.h.
  void (*rope_half)(const RopeArgs& args);
  // Pairs (2i, 2i + 1).
  void (*rope_interleaved)(const RopeArgs& args);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const RowKernels& row_kernels_scalar();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();

}  // namespace quire::kernels
