#include "kernels/avx512/latent_amx_bf16.h"
#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/latent_body.h"

namespace quire::kernels {
namespace {

constexpr LatentKernels kAmxKernels = [] {
  LatentKernels kernels = kLatentKernels<8>;
  kernels.bf16 = latent_chunk_amx_bf16;
  return kernels;
}();

}  // namespace

const LatentKernels& latent_kernels_avx512() { return kLatentKernels<8>; }
const LatentKernels& latent_kernels_avx512_amx() { return kAmxKernels; }

}  // namespace quire::kernels
