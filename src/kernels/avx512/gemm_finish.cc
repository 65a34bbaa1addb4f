// Slices to outputs, and activation rows to bf16; and the table without vdpbf16ps.
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

void round_row_bf16(const float* x, int k, uint16_t* out) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i half = _mm512_set1_epi32(0x7fff);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  const __m512i infinity = _mm512_set1_epi32(0x7f800000);
  for (int i = 0; i < k; i += 16) {
    const __mmask16 lanes = first_lanes(k - i);
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes, x + i));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(half, odd));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, infinity);
    const __m512i value = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
    _mm256_mask_storeu_epi16(out + i, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(value, 16)));
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
    k.round_row_bf16 = avx512::round_row_bf16;
    return k;
  }();
  return kernels;
}

}  // namespace quire::kernels
