// A chunk of latent attention by AMX tiles, over bf16; avx512/latent.cc puts it into a table.
#pragma once

#include "kernels/latent_kernels.h"

namespace quire::kernels {

void latent_chunk_amx_bf16(const LatentChunkArgs& args);

}  // namespace quire::kernels
