#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/index_body.h"

namespace quire::kernels {

const IndexKernels& index_kernels_scalar() { return kIndexKernels<2>; }

}  // namespace quire::kernels
