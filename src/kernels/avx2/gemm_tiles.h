// The AVX2 matrix kernels, shared by the tables with and without AVX-VNNI.
#pragma once

#include "kernels/gemm_kernels.h"

namespace quire::kernels::avx2 {

// Fill in the tiles of every integer layout: with vpmaddubsw, or vpdpbusd on CPUs that have it.
void set_integer_tiles(GemmKernels& kernels);
void set_integer_tiles_vnni(GemmKernels& kernels);
// Fills in the tiles of f32, f16 and bf16.
void set_float_tiles(GemmKernels& kernels);

void finish(const FinishArgs& args);
void quantise_row(const float* x, int k, std::byte* q, std::byte* meta, size_t step);
void round_row(const float* x, int k, std::byte* out);

}  // namespace quire::kernels::avx2
