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

// Activation rows are multiplied in tiles of up to this many. int8 rows of a tile lie interleaved, so that a kernel
// reads one stream: for each group of 32 inputs first rows x 32 values, then rows x GroupMeta.
inline constexpr int kTileRows = 6;
inline constexpr size_t kGroupRowBytes = kGroup + sizeof(GroupMeta);  // of one row and group
inline constexpr int kMaxSums = kMaxSlices * kTileRows * 64;          // the widest panel

// One tile of activations times one panel, over inputs [begin, end).
struct TileArgs {
  int rows;
  int begin, end;      // integers and bf16: multiples of 32
  const std::byte* a;  // floats: the first row; integers: the tile
  size_t a_pitch;      // floats: bytes from one row to the next
  const std::byte* panel;
  size_t prefetch;  // bytes from this panel's data to what should be fetched meanwhile; 0 for nothing
  float* sums;      // [rows][panel columns], 64-byte aligned: by rule 1 or 4, from +0
};

// Sums of slices, added by the fixed tree of rule 11, become outputs:
//   r = tree(sums);  r = fma(addend_scale, addend, r);  r = r + bias;  r = residual + r
// where null pointers leave their step out.
//
// With `mix_weights` they stay slices, and are added to those of the rows that mix experts (rule 8), `out` being row 0
// of slice 0:  out[mix_rows[r] of slice s] = fma(mix_weights[r], sums of s, what is there)
struct FinishArgs {
  const float* sums;  // of each slice [rows][width], 64-byte aligned
  int slices;         // 1, 2, 4 or 8
  size_t slice_stride;
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
  const float* mix_weights = nullptr;
  const int32_t* mix_rows = nullptr;
  size_t mix_stride = 0;  // from one slice of `out` to the next
};

struct GemmKernels {
  using Tile = void (*)(const TileArgs& args);

  Tile tile[kLayouts];  // indexed by Layout
  void (*finish)(const FinishArgs& args);

  // Rule 4: k inputs, a multiple of 32, as int8 with one scale per 32. The values of a group follow those of the one
  // before at a distance of `step` bytes, and so do the records.
  void (*quantise_row)(const float* x, int k, std::byte* q, std::byte* meta, size_t step);

  // k inputs rounded to bf16, to nearest even, NaN to NaN, and zeros up to whole blocks of 32. round_row keeps them as
  // fp32, for weights of fp16; round_row_bf16 as the tile of bf16 weights reads them.
  void (*round_row)(const float* x, int k, std::byte* out);
  void (*round_row_bf16)(const float* x, int k, std::byte* out);
};

// Products of several tiles of integers with one panel, which is unpacked once for all of them, to what the same
// table's tiles read. Tiles are those of GemmKernels, or wide ones, of matrix instructions.
//
// Wide tiles hold kWideRows, the last one the rest. They lie as the others do, the last one with room for half of
// kWideRows or all; what is behind its last row is never read as a result.
inline constexpr int kWideRows = 16;
inline constexpr size_t kUnpackedBytes = 64 * 1024;  // at most, at a time
static constexpr int wide_slots(int rows) { return rows > kWideRows / 2 ? kWideRows : kWideRows / 2; }

// Groups [first, last) of a panel.
struct UnpackArgs {
  const std::byte* panel;
  size_t first, last;
  std::byte* out;  // 64-byte aligned
};

// One tile of activations times groups [first, last) of one panel. Where `first` is not the first of a
// slice, its sums go on from `sums`.
struct PanelTileArgs {
  int rows;
  size_t first, last;
  size_t slice;              // groups of a slice
  const std::byte* a;        // the tile
  const std::byte* weights;  // unpacked, from group `first` on
  const std::byte* panel;    // for the scales
  const std::byte* fetch;    // so many bytes for each group, from here on, should be fetched meanwhile
  size_t fetch_bytes;
  size_t next_a;  // bytes from `a` to what the next call reads; 0 for nothing
  float* sums;    // [slices][rows][panel columns], 64-byte aligned: by rule 4
};

struct PanelKernels {
  int least_rows;  // fewer are multiplied as well by GemmKernels
  size_t groups;   // multiplied at a time for several tiles: caches should hold their weights

  // Around any number of tiles of one layout, in the thread that computes them.
  void (*enter)(Layout layout);
  void (*leave)();
  // Indexed by Layout; null for layouts of another kind of activations, and those that GemmKernels multiply as well.
  void (*unpack[kLayouts])(const UnpackArgs& args);
  void (*tile[kLayouts])(const PanelTileArgs& args);
};

// Products of bf16 rows with one panel by matrix instructions (rule 1). Rows lie in wide tiles: for each block of 32
// inputs [wide_bf16_slots][32] numbers, and one tile behind the other. What is behind the last row is never read as a
// result.
static constexpr int wide_bf16_slots(int rows) { return rows < kWideRows ? rows : kWideRows; }

inline constexpr int kWidePanelRows = 1024;  // times slices, at most

struct WidePanelArgs {
  int rows;
  int slots;           // of a tile
  size_t blocks;       // of 32 inputs
  const std::byte* a;  // the first tile
  const std::byte* panel;
  const std::byte* next;  // what should be fetched towards the end, or null
  float* sums;            // scratch, 64-byte aligned: 64 for each row and slice, rows rounded up to two tiles
  FinishArgs out;         // for all rows and columns of the panel; sums and their shape are not looked at, but `slices`
};

struct WidePanelKernels {
  int least_rows;  // fewer are multiplied as well by GemmKernels

  // Around any number of panels for tiles with so many slots, in the thread that computes.
  void (*enter)(int slots);
  void (*leave)();
  void (*panel)(const WidePanelArgs& args);
  // As GemmKernels' round_row_bf16, for a row of a wide tile: a block of 32 inputs lies `step` bytes behind the one
  // before.
  void (*round_row)(const float* x, int k, std::byte* out, size_t step);
};

// As the instruction sets define them. Which exist depends on the build; kernels.cc chooses.
const GemmKernels& gemm_kernels_scalar();
const GemmKernels& gemm_kernels_avx2();
const GemmKernels& gemm_kernels_avx2_vnni();
const GemmKernels& gemm_kernels_avx512();
const GemmKernels& gemm_kernels_avx512_bf16();
const PanelKernels& unpacked_kernels_avx2();
const PanelKernels& unpacked_kernels_avx2_vnni();
const PanelKernels& unpacked_kernels_avx512();
const PanelKernels& wide_kernels_amx();
const WidePanelKernels& wide_kernels_amx_bf16();
// Whether this CPU's vdpbf16ps equals two FMAs, the upper elements first, so that it can follow rule 1, and beats them;
// needs flush-to-zero set.
bool vdpbf16ps_follows_rule_1();
bool vdpbf16ps_is_faster();

}  // namespace quire::kernels
