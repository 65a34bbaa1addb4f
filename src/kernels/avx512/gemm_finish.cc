// Slices to outputs, and the tables with and without vdpbf16ps.
#include <immintrin.h>

#include "kernels/avx512/gemm_tiles.h"

namespace quire::kernels {
namespace avx512 {
namespace {

// Rule 11: ((0+1)+(2+3))+((4+5)+(6+7)) of slices `stride` floats apart.
template <int kSlices>
__attribute__((always_inline)) inline __m512 slice_sum(const float* sums, size_t stride) {
  if constexpr (kSlices == 1) {
    return _mm512_load_ps(sums);
  } else {
    constexpr int kHalf = kSlices / 2;
    return _mm512_add_ps(slice_sum<kHalf>(sums, stride), slice_sum<kHalf>(sums + kHalf * stride, stride));
  }
}

__mmask16 first_lanes(int count) { return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1); }

template <int kSlices>
void finish_slices(const FinishArgs& f) {
  const __m512 addend_scale = _mm512_set1_ps(f.addend_scale);
  for (int r = 0; r < f.rows; r++) {
    const auto row = static_cast<size_t>(r);
    for (int c = 0; c < f.columns; c += 16) {
      const __mmask16 lanes = first_lanes(f.columns - c);
      __m512 value = slice_sum<kSlices>(f.sums + r * f.width + c, f.slice_stride);
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

void mix(const FinishArgs& f) {
  for (int r = 0; r < f.rows; r++) {
    const __m512 weight = _mm512_set1_ps(f.mix_weights[r]);
    for (int s = 0; s < f.slices; s++) {
      const float* sums = f.sums + static_cast<size_t>(s) * f.slice_stride + r * f.width;
      float* out = f.out + static_cast<size_t>(s) * f.mix_stride + static_cast<size_t>(f.mix_rows[r]) * f.out_stride;
      for (int c = 0; c < f.columns; c += 16) {
        const __mmask16 lanes = first_lanes(f.columns - c);
        _mm512_mask_storeu_ps(out + c, lanes,
                              _mm512_fmadd_ps(weight, _mm512_load_ps(sums + c), _mm512_maskz_loadu_ps(lanes, out + c)));
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
