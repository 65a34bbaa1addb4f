// The chunk kernels by vdpbf16ps, over bf16 and int8; avx512/attention.cc puts them into a table.
#pragma once

#include "kernels/attention_kernels.h"

namespace quire::kernels {

void attention_chunk_avx512_bf16(const ChunkArgs& args);
void attention_encode_avx512_bf16(const float* x, int n, void* out);
void attention_chunk_i8_avx512_bf16(const ChunkArgs& args);

}  // namespace quire::kernels
