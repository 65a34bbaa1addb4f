#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/gated_delta_body.h"

namespace quire::kernels {

const GatedDeltaKernels& gated_delta_kernels_scalar() { return kGatedDeltaKernels; }

}  // namespace quire::kernels
