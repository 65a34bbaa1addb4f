#include "kernels/avx2/math_lanes.h"
#include "kernels/shared/latent_body.h"

namespace quire::kernels {

const LatentKernels& latent_kernels_avx2() { return kLatentKernels<2>; }

}  // namespace quire::kernels
