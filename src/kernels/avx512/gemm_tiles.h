// The AVX-512 matrix kernels, shared by the tables with and without vdpbf16ps.
#pragma once

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx512 {

// Fills in the tiles of every integer layout.
void set_integer_tiles(GemmKernels& kernels);
// Fills in the tiles of f32 and f16, and of bf16 as pairs of FMAs.
void set_float_tiles(GemmKernels& kernels);

void finish(const FinishArgs& args);
void quantise_row(const float* x, int k, int8_t* q, GroupMeta* meta);
void round_row_bf16(const float* x, int k, uint16_t* out);

// bf16 by vdpbf16ps, up to 6 rows. Only on CPUs that have it.
void native_bf16_tile(const TileArgs& args);

}  // namespace quire::kernels::avx512
