// Slices to outputs, and the tables with and without vdpbf16ps.
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels {
namespace avx512 {
namespace {

// Rule 11: ((0+1)+(2+3))+((4+5)+(6+7)), left in slice 0.
void add_slices(const FinishArgs& f) {
  const int size = f.rows * f.width;
  for (int step = 1; step < f.slices; step *= 2) {
    for (int s = 0; s < f.slices; s += 2 * step) {
      float* to = f.sums + s * size;
      const float* from = to + step * size;
      for (int i = 0; i < size; i += 16) {
        _mm512_store_ps(to + i, _mm512_add_ps(_mm512_load_ps(to + i), _mm512_load_ps(from + i)));
      }
    }
  }
}

__mmask16 first_lanes(int count) { return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1); }

}  // namespace

void finish(const FinishArgs& f) {
  add_slices(f);
  const __m512 addend_scale = _mm512_set1_ps(f.addend_scale);
  for (int r = 0; r < f.rows; r++) {
    const auto row = static_cast<size_t>(r);
    for (int c = 0; c < f.columns; c += 16) {
      const __mmask16 lanes = first_lanes(f.columns - c);
      __m512 value = _mm512_load_ps(f.sums + r * f.width + c);
      if (f.addend != nullptr) {
        const __m512 addend = _mm512_maskz_loadu_ps(lanes, f.addend + row * f.addend_stride + c);
        value = _mm512_fmadd_ps(addend_scale, addend, value);
      }
      if (f.bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, f.bias + c));
      if (f.residual != nullptr) {
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, f.residual + row * f.residual_stride + c), value);
      }
      _mm512_mask_storeu_ps(f.out + row * f.out_stride + c, lanes, value);
    }
  }
}

}  // namespace avx512

const GemmKernels& gemm_kernels_avx512() {
  static const GemmKernels kernels = [] {
    GemmKernels k{};
    avx512::set_integer_tiles(k);
    avx512::set_float_tiles(k);
    k.finish = avx512::finish;
    k.quantise_row = avx512::quantise_row;
    return k;
  }();
  return kernels;
}

const GemmKernels& gemm_kernels_avx512_bf16() {
  static const GemmKernels kernels = [] {
    GemmKernels k = gemm_kernels_avx512();
    avx512::set_pair_tile(k);
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
