#include "kernels/avx2/math_lanes.h"
#include "kernels/shared/index_body.h"

namespace quire::kernels {

const IndexKernels& index_kernels_avx2() { return kIndexKernels<2>; }

}  // namespace quire::kernels
