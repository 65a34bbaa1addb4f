#include "kernels/avx2/gemm_integer_tiles.h"

namespace quire::kernels::avx2 {

void set_integer_tiles_vnni(GemmKernels& kernels) { set_tiles(kernels); }

}  // namespace quire::kernels::avx2
