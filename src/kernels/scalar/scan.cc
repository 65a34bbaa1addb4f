#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/scan_body.h"

namespace quire::kernels {

const ScanKernels& scan_kernels_scalar() { return kScanKernels; }

}  // namespace quire::kernels
