#include "kernels/avx2/math_lanes.h"
#include "kernels/shared/gated_delta_body.h"

namespace quire::kernels {

const GatedDeltaKernels& gated_delta_kernels_avx2() { return kGatedDeltaKernels; }

}  // namespace quire::kernels
