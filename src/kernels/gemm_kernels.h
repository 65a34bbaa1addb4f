// What each instruction set provides for matrix products: tiles, their finish, and the preparation of activation rows.
//
// Plain data and function pointers: files compiled for one instruction set include this, and must not emit inline
// functions that the linker could pick for others. Only gemm.cc and pack.cc call these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm_layout.h"

namespace quire::kernels {

// What a kernel needs to know of 32 consecutive inputs of one row (rule 4). The sums undo the weight offsets.
struct GroupMeta {
  float scale;              // s_a; NaN if an input is not finite
  float scaled_sum;         // s_a * float(sum of q), multiplies the minimum
  int32_t minus_8_sum;      // -8 * sum of q
  int32_t minus_128_sum;    // -128 * sum of q
  int32_t minus_32_sum[2];  // -32 * sum of q[0..15], of q[16..31]
};

// One tile: `rows` rows of activations times one panel, over inputs [begin, end).
struct TileArgs {
  int rows;               // 1 .. kMaxTileRows
  int begin, end;         // integers: multiples of 32; pairs: even
  const void* a;          // fp32, bf16 or int8 rows, as the layout wants
  size_t a_stride;        // elements from one row to the next
  const GroupMeta* meta;  // integers: of group 0 of the first row
  size_t meta_stride;
  const std::byte* panel;
  size_t prefetch;  // bytes from this panel's data to what should be fetched meanwhile; 0 for nothing
  float* sums;      // [rows][panel columns], 64-byte aligned: one fp32 chain each, from +0
};

// Sums of slices, added by the fixed tree of rule 11, become outputs:
//   r = tree(sums);  r = fma(addend_scale, addend, r);  r = r + bias;  r = residual + r
// where null pointers leave their step out.
struct FinishArgs {
  float* sums;  // [slices][rows][width]; overwritten
  int slices;   // 1, 2, 4 or 8
  int rows;
  int width;    // 32 or 64
  int columns;  // of `width`, those to write
  float* out;
  size_t out_stride;
  const float* addend;
  size_t addend_stride;
  float addend_scale;
  const float* bias;
  const float* residual;
  size_t residual_stride;
};

inline constexpr int kMaxTileRows = 8;

struct GemmKernels {
  using Tile = void (*)(const TileArgs& args);

  // Indexed by Layout: the kernel, and the most rows it takes at once.
  Tile tile[kLayouts];
  int tile_rows[kLayouts];

  void (*finish)(const FinishArgs& args);

  // Rule 4: k inputs, a multiple of 32, as int8 with one scale per 32.
  void (*quantise_row)(const float* x, int k, int8_t* q, GroupMeta* meta);
  // k inputs to bf16, to nearest even; NaN stays NaN.
  void (*round_row_bf16)(const float* x, int k, uint16_t* out);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const GemmKernels& gemm_kernels_scalar();
const GemmKernels& gemm_kernels_avx2();
const GemmKernels& gemm_kernels_avx2_vnni();
const GemmKernels& gemm_kernels_avx512();
const GemmKernels& gemm_kernels_avx512_bf16();
// Whether this CPU's vdpbf16ps equals two FMAs, the odd elements first; needs flush-to-zero set.
bool vdpbf16ps_follows_rule_1();

}  // namespace quire::kernels
