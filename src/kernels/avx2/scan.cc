#include "kernels/avx2/math_lanes.h"
#include "kernels/shared/scan_body.h"

namespace quire::kernels {

const ScanKernels& scan_kernels_avx2() { return kScanKernels; }

}  // namespace quire::kernels
