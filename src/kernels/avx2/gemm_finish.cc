// Slices to outputs, and the tables with and without AVX-VNNI.
#include <immintrin.h>

#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels {
namespace avx2 {
namespace {

// Rule 11: ((0+1)+(2+3))+((4+5)+(6+7)), left in slice 0.
void add_slices(const FinishArgs& f) {
  const int size = f.rows * f.width;
  for (int step = 1; step < f.slices; step *= 2) {
    for (int s = 0; s < f.slices; s += 2 * step) {
      float* to = f.sums + s * size;
      const float* from = to + step * size;
      for (int i = 0; i < size; i += 8) {
        _mm256_store_ps(to + i, _mm256_add_ps(_mm256_load_ps(to + i), _mm256_load_ps(from + i)));
      }
    }
  }
}

__m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

void finish(const FinishArgs& f) {
  add_slices(f);
  const __m256 addend_scale = _mm256_set1_ps(f.addend_scale);
  for (int r = 0; r < f.rows; r++) {
    const auto row = static_cast<size_t>(r);
    for (int c = 0; c < f.columns; c += 8) {
      const __m256i lanes = first_lanes(f.columns - c);
      __m256 value = _mm256_load_ps(f.sums + r * f.width + c);
      if (f.addend != nullptr) {
        const __m256 addend = _mm256_maskload_ps(f.addend + row * f.addend_stride + c, lanes);
        value = _mm256_fmadd_ps(addend_scale, addend, value);
      }
      if (f.bias != nullptr) value = _mm256_add_ps(value, _mm256_maskload_ps(f.bias + c, lanes));
      if (f.residual != nullptr) {
        value = _mm256_add_ps(_mm256_maskload_ps(f.residual + row * f.residual_stride + c, lanes), value);
      }
      _mm256_maskstore_ps(f.out + row * f.out_stride + c, lanes, value);
    }
  }
}

namespace {

GemmKernels common_kernels() {
  GemmKernels k{};
  set_float_tiles(k);
  k.finish = finish;
  k.quantise_row = quantise_row;
  k.round_row = round_row;
  k.round_row_bf16 = round_row;
  return k;
}

}  // namespace
}  // namespace avx2

const GemmKernels& gemm_kernels_avx2() {
  static const GemmKernels kernels = [] {
    GemmKernels k = avx2::common_kernels();
    avx2::set_integer_tiles(k);
    return k;
  }();
  return kernels;
}

const GemmKernels& gemm_kernels_avx2_vnni() {
  static const GemmKernels kernels = [] {
    GemmKernels k = avx2::common_kernels();
    avx2::set_integer_tiles_vnni(k);
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
