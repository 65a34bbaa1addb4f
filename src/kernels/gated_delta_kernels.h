// What each instruction set provides for the gated delta rule: one key head of one sequence, token by token. Plain data
// and function pointers (see gemm_kernels.h). Only gated_delta.cc calls these.
#pragma once

#include <cstddef>

namespace quire::kernels {

inline constexpr int kMostGatedDim = 256;  // of a key or value

struct KeyHeadArgs {
  int key_dim;
  int value_dim;
  int conv_width;
  int channels;          // from a token's weights in conv to the next one's
  int first_q, first_k;  // channels of the key head
  int first_v;           // channel of the values of head 0
  int heads;             // that use the key head:
  int first_head;        // first_head + i * head_step
  int head_step;
  const float* conv;
  const float* rate;
  const float* dt_bias;
  float decay_floor;
  int rows;
  const float* x;  // of the first row, as the next three
  const float* b;
  const float* a;
  size_t stride;  // of x and b
  size_t a_stride;
  float* out;
  size_t out_stride;
  float* state;  // changed in place: inputs of the convolution, then S of each head
};

struct GatedDeltaKernels {
  void (*key_head)(const KeyHeadArgs& args);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const GatedDeltaKernels& gated_delta_kernels_scalar();
const GatedDeltaKernels& gated_delta_kernels_avx2();
const GatedDeltaKernels& gated_delta_kernels_avx512();

}  // namespace quire::kernels
