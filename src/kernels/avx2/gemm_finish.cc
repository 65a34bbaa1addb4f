// Slices to outputs, and the tables with and without AVX-VNNI.
#include <immintrin.h>

#include "kernels/avx2/gemm_tiles.h"

namespace quire::kernels {
namespace avx2 {
namespace {

// Rule 11: ((0+1)+(2+3))+((4+5)+(6+7)) of slices `stride` floats apart.
template <int kSlices>
__attribute__((always_inline)) inline __m256 slice_sum(const float* sums, size_t stride) {
  if constexpr (kSlices == 1) {
    return _mm256_load_ps(sums);
  } else {
    constexpr int kHalf = kSlices / 2;
    return _mm256_add_ps(slice_sum<kHalf>(sums, stride), slice_sum<kHalf>(sums + kHalf * stride, stride));
  }
}

__m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <int kSlices>
void finish_slices(const FinishArgs& f) {
  const __m256 addend_scale = _mm256_set1_ps(f.addend_scale);
  for (int r = 0; r < f.rows; r++) {
    const auto row = static_cast<size_t>(r);
    for (int c = 0; c < f.columns; c += 8) {
      const __m256i lanes = first_lanes(f.columns - c);
      __m256 value = slice_sum<kSlices>(f.sums + r * f.width + c, f.slice_stride);
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

void mix(const FinishArgs& f) {
  for (int r = 0; r < f.rows; r++) {
    const __m256 weight = _mm256_set1_ps(f.mix_weights[r]);
    for (int s = 0; s < f.slices; s++) {
      const float* sums = f.sums + static_cast<size_t>(s) * f.slice_stride + r * f.width;
      float* out = f.out + static_cast<size_t>(s) * f.mix_stride + static_cast<size_t>(f.mix_rows[r]) * f.out_stride;
      for (int c = 0; c < f.columns; c += 8) {
        const __m256i lanes = first_lanes(f.columns - c);
        _mm256_maskstore_ps(out + c, lanes,
                            _mm256_fmadd_ps(weight, _mm256_load_ps(sums + c), _mm256_maskload_ps(out + c, lanes)));
      }
    }
  }
}

}  // namespace

void finish(const FinishArgs& f) {
  if (f.mix_weights != nullptr) return mix(f);
  switch (f.slices) {
    case 1:
      return finish_slices<1>(f);
    case 2:
      return finish_slices<2>(f);
    case 4:
      return finish_slices<4>(f);
    case 8:
      return finish_slices<8>(f);
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
