#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/latent_body.h"

namespace quire::kernels {

const LatentKernels& latent_kernels_scalar() { return kLatentKernels<2>; }

}  // namespace quire::kernels
