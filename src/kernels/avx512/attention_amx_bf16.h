// The chunk kernel by AMX tiles of bf16, for queries as FMAs want them; avx512/attention.cc puts it into a table.
#pragma once

#include "kernels/attention_kernels.h"

namespace quire::kernels {

void attention_chunk_amx_bf16(const ChunkArgs& args);

}  // namespace quire::kernels
