#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/row_ops_body.h"

namespace quire::kernels {

const RowKernels& row_kernels_scalar() { return kRowKernels; }

}  // namespace quire::kernels
