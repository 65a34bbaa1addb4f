// What each instruction set provides for an indexer. Plain data and function pointers (see gemm_kernels.h). Only
// pooled_index.cc calls these.
#pragma once

#include <cstddef>

namespace quire::kernels {

struct IndexNormArgs {
  int n;
  const float* x;
  const float* weight;
  const float* bias;
  float epsilon;
  float* out;  // not x
};

struct IndexPoolArgs {
  int pool;
  int dim;
  const float* rows;  // [pool][key, gate]
  const float* bias;  // [pool][dim]
  float* out;         // [dim]
};

// Some keys against the queries of one row. Vectors are whole lanes: dimensions and heads are rounded up to sixteen,
// and what the added lanes hold means nothing.
struct IndexScoreArgs {
  int heads;
  int dim;
  int count;                     // of keys
  const std::byte* const* keys;  // theirs in the cache
  const float* queries;          // [dim][heads]
  const float* weights;          // [heads], times the scale
  float* wide;                   // room for [count][dim]
  float* dots;                   // room for [count][heads]
  float* scores;                 // gets [count]
};

struct IndexKernels {
  // LayerNorm: (x - mean) / sqrt(variance + epsilon), then out = fma(., weight, bias).
  void (*norm)(const IndexNormArgs& args);
  // For every channel the keys' mean, weighted by the softmax over the pool of gate + bias.
  void (*pool)(const IndexPoolArgs& args);
  // Sum over the heads, ascending, of weight * max(0, q . key). For keys of each type.
  void (*score_bf16)(const IndexScoreArgs& args);
  void (*score_f32)(const IndexScoreArgs& args);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const IndexKernels& index_kernels_scalar();
const IndexKernels& index_kernels_avx2();
const IndexKernels& index_kernels_avx512();

}  // namespace quire::kernels
