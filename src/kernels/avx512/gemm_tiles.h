// The AVX-512 matrix kernels, shared by the tables with and without vdpbf16ps.
#pragma once

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx512 {

// Fills in the tiles of every integer layout.
void set_integer_tiles(GemmKernels& kernels);
// Fills in the tiles of f32, f16 and bf16, all with FMAs, and what rounds their activations.
void set_float_tiles(GemmKernels& kernels);
// Fills in bf16 with vdpbf16ps, and what rounds its activations. Only for CPUs that have it.
void set_pair_tile(GemmKernels& kernels);

void finish(const FinishArgs& args);
void quantise_row(const float* x, int k, std::byte* q, std::byte* meta, size_t step);

}  // namespace quire::kernels::avx512
