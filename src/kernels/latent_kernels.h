// What each instruction set provides for latent attention. Plain data and function pointers (see gemm_kernels.h). Only
// latent_attention.cc calls these.
//
// Everything but the softmax is one product by numerics rule 1, out[row][n] = sum_k x[row][k] * v[k][n], with lanes of
// n: absorbing (v: rows of the expansion), scores (x: keys, v: queries, lanes of heads), weighted sums (x: weights of a
// head, v: keys) and expanding. So vectors are whole lanes: n is rounded up to sixteen everywhere, and what the added
// lanes hold means nothing.
#pragma once

#include <cstddef>

#include "kernels/attention_kernels.h"
#include "kernels/term_blocks.h"

namespace quire::kernels {

inline constexpr int kHeadLanes = 16;  // heads that are scored together
inline constexpr int kLatentKeyRows = kSoftmaxChunk + kHeadLanes;

struct LatentAbsorbArgs {
  int rows;
  int heads;
  int nope_dim;
  int rope_dim;
  int rank;
  int begin, end;           // sixteens of the rank; who begins with 0 also takes the dimensions with rope
  const float* q;           // rows of [heads][nope | rope]
  size_t q_stride;          // floats
  const void* expansion;    // Expansion::data()
  size_t expansion_stride;  // numbers from head to head
  TermBlocks blocks;        // of nope_dim
  float* x;                 // room for [rows][nope_dim]
  float* sums;              // room for [rows][sixteens]
  float* queries;           // gets [rows][heads / 16][rank | rope][16]
};

// Some keys of one softmax chunk and all heads of a row.
struct LatentChunkArgs {
  int heads;
  int rank;
  int row_dim;
  int count;                     // of keys
  const std::byte* const* rows;  // theirs in the cache
  const int* places;             // theirs in the chunk
  TermBlocks key_blocks;         // of keys
  TermBlocks dim_blocks;         // of row_dim
  const float* queries;          // of the row
  float scale;
  float* keys;                   // room for [kLatentKeyRows][row_dim in whole blocks of rule 1]
  float* weights;                // room for [kSoftmaxChunk][kHeadLanes]
  SoftmaxState* state;           // gets that of each head rounded up to sixteen
  float* out;                    // gets [heads][rank], before + 0.0
  const std::byte* const* next;  // keys that are read after these, to be fetched meanwhile
  int next_count;
};

struct LatentExpandArgs {
  int rows;
  int rank;
  int value_dim;
  TermBlocks blocks;          // of the rank
  const SoftmaxState* state;  // of the head in each row
  size_t state_stride;
  const float* sums;
  size_t sums_stride;
  const void* expansion;  // of the head's values
  float* x;               // room for [rows][rank]
  float* padded;          // room for [rows][value_dim]
  float* out;
  size_t out_stride;
};

// For one type of rows and one of the expansion.
struct LatentMapKernels {
  void (*absorb)(const LatentAbsorbArgs& args);
  void (*expand)(const LatentExpandArgs& args);
};

struct LatentKernels {
  // A chunk of rows of one type.
  void (*bf16)(const LatentChunkArgs& args);
  void (*f32)(const LatentChunkArgs& args);
  LatentMapKernels bf16_by_bf16;
  LatentMapKernels bf16_by_f32;
  LatentMapKernels f32_by_f32;
  // Adds the state of a higher chunk to that of a head and row; `rank` sums in whole lanes.
  void (*merge)(SoftmaxState& to, float* to_sums, const SoftmaxState& more, const float* sums, int rank);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const LatentKernels& latent_kernels_scalar();
const LatentKernels& latent_kernels_avx2();
const LatentKernels& latent_kernels_avx512();
const LatentKernels& latent_kernels_avx512_amx();

}  // namespace quire::kernels
