#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/index_body.h"

namespace quire::kernels {

const IndexKernels& index_kernels_avx512() { return kIndexKernels<8>; }

}  // namespace quire::kernels
