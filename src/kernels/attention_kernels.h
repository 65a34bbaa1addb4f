// What each instruction set provides for attention: one softmax chunk for a tile of rows, merging, and writing pages.
//
// Plain data and function pointers (see gemm_kernels.h). Only attention.cc calls these. Page layout and arithmetic:
// attention.h and numerics rules 6 and 13. A word is one fp32 number, two bf16 numbers or two int8 numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/kernels.h"

namespace quire::kernels {

inline constexpr int kSoftmaxChunk = 256;  // keys, at absolute positions
inline constexpr int kKeyRun = 16;         // keys that are scored together, or skipped together if no row sees any
inline constexpr int kChunkRuns = kSoftmaxChunk / kKeyRun;
inline constexpr int kValueBlock = 64;  // dimensions of V that lie together
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kRule1Block = 32;         // bf16 numbers that are summed up together
inline constexpr int kAttentionTileRows = 16;  // the most

// Sixteen consecutive keys of a chunk and where they lie. The V row of the run's first token in dimension block b,
// which is w dimensions wide, starts at v + b * v_block_stride + v_place / numbers in a word * w words.
struct KeyRun {
  int index;           // in the chunk
  int v_place;         // token in the tile
  const std::byte* k;  // words of dimensions, k_stride bytes apart
  const std::byte* v;
  size_t v_block_stride;
  const float* k_scales;  // of the sixteen rows, where the cache has scales
  const float* v_scales;
};

struct KeyRuns {
  int count;
  size_t k_stride;
  KeyRun run[kChunkRuns];
};

// A query row: encoded numbers, and the keys [lo, hi) of the chunk that it sees; none if lo >= hi.
struct QueryRow {
  const void* q;
  int lo;
  int hi;
};

// Softmax over some keys: o and l are relative to 2^m, in log2 units. m = -inf: over none, o and l say nothing.
struct SoftmaxState {
  float m;
  float l;
};

struct ChunkArgs {
  int rows;  // 1 .. kAttentionTileRows
  QueryRow row[kAttentionTileRows];
  int lo, hi;           // the keys that at least one row sees
  const KeyRuns* runs;  // of [lo, hi)
  // Not null: this chunk comes from memory; fetch its V while scoring and `next`'s K (count may be 0) after that.
  const KeyRuns* next;
  int head_dim;
  float scale;
  float soft_cap;  // 0: none
  float* o;        // [rows][kMaxHeadDim], 64-byte aligned
  SoftmaxState* state;
};

// New tokens of one kv head in consecutive places of one page.
struct WriteArgs {
  std::byte* k_tile;
  std::byte* v_tile;
  int page_tokens;
  int head_dim;
  int place;
  int count;
  const float* k;
  const float* v;
  size_t k_stride;  // floats
  size_t v_stride;
  float* scales;  // of the page's K, then of its V, where the cache has scales
};

// For one type of cache.
struct CacheKernels {
  void (*chunk)(const ChunkArgs& args);
  void (*write)(const WriteArgs& args);
  // Makes a query row as QueryRow wants it, q_bytes for each number of n rounded up to 32. Null: fp32 as it is.
  void (*encode)(const float* x, int n, void* out);
  size_t q_bytes;
  int tile_rows;  // that chunk() does best together
  // With so many rows chunk() uses matrix instructions, and takes about a quarter as long for each; 0: never.
  int least_tile_rows = 0;
};

struct AttentionKernels {
  CacheKernels bf16;
  CacheKernels f32;
  CacheKernels i8;
  // Adds the state of a higher chunk to a row's; `to` is the row's unfinished output. `o` is readable up to a multiple
  // of 16.
  void (*merge)(float* to, SoftmaxState* state, const float* o, const SoftmaxState* more, int head_dim);
  // Divides by the sum, after a sink (null: none) has joined it.
  void (*finish)(float* to, const SoftmaxState* state, const float* sink, int head_dim);
};

inline const CacheKernels& cache_kernels(const KernelTable& table, DType dtype) {
  if (dtype == DType::kI8) return table.attention->i8;
  return dtype == DType::kF32 ? table.attention->f32 : table.attention->bf16;
}

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const AttentionKernels& attention_kernels_scalar();
const AttentionKernels& attention_kernels_avx2();
const AttentionKernels& attention_kernels_avx512();
const AttentionKernels& attention_kernels_avx512_bf16();
const AttentionKernels& attention_kernels_avx512_amx();

}  // namespace quire::kernels
