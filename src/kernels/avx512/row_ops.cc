#include "kernels/avx512/math_lanes.h"
#include "kernels/shared/row_ops_body.h"

namespace quire::kernels {

const RowKernels& row_kernels_avx512() { return kRowKernels; }

}  // namespace quire::kernels
