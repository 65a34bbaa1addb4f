// The chunk kernel by AMX tiles of bf16, for queries in bf16; avx512/attention.cc puts it into a table.
#pragma once

#include "kernels/attention_kernels.h"

namespace quire::kernels {

void attention_chunk_amx_bf16(const ChunkArgs& args);
void attention_encode_amx_bf16(const float* x, int n, void* out);

}  // namespace quire::kernels
