#include "kernels/avx512/gemm_float_tiles.h"
#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels::avx512 {
namespace {

void round_row(const float* x, int k, std::byte* out) {
  const int padded = k + k % 2;
  for (int i = 0; i < padded; i += 16) {
    const __m512i value = rounded(_mm512_maskz_loadu_ps(first_lanes(k - i), x + i));
    _mm512_mask_storeu_epi32(out + i * 4, first_lanes(padded - i), value);
  }
}

}  // namespace

void set_float_tiles(GemmKernels& kernels) {
  kernels.tile[static_cast<int>(Layout::kF32)] = any_float_tile<Layout::kF32, false>;
  kernels.tile[static_cast<int>(Layout::kF16)] = any_float_tile<Layout::kF16, false>;
  kernels.tile[static_cast<int>(Layout::kBF16)] = any_float_tile<Layout::kBF16, false>;
  kernels.round_row_bf16 = round_row;
  kernels.narrow_bf16 = false;
}

}  // namespace quire::kernels::avx512
