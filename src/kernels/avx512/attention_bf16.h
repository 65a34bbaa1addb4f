// The chunk kernel by vdpbf16ps; avx512/attention.cc puts it into a table.
#pragma once

#include "kernels/attention_kernels.h"

namespace quire::kernels {

void attention_chunk_avx512_bf16(const ChunkArgs& args);

}  // namespace quire::kernels
