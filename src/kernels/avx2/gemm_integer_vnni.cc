#include "kernels/avx2/gemm_integer_tiles.h"

namespace quire::kernels::avx2 {

void set_integer_tiles_vnni(GemmKernels& kernels) { set_tiles(kernels); }

}  // namespace quire::kernels::avx2

namespace quire::kernels {

const PanelKernels& unpacked_kernels_avx2_vnni() {
  static const PanelKernels kernels = avx2::unpacked_kernels();
  return kernels;
}

}  // namespace quire::kernels
