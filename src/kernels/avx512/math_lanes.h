// Sixteen fp32 lanes in one zmm register. scalar/math_lanes.h says what the operations mean.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels {
namespace {

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

struct Lanes {
  __m512 v;

  static constexpr int kCount = 16;
  static Lanes set(float x) { return {_mm512_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Lanes load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_part(float* p, int n) const { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
};

struct LaneInts {
  __m512i v;

  static LaneInts set(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static LaneInts load(const void* p) { return {_mm512_loadu_si512(p)}; }
  static LaneInts load_part(const void* p, int n) { return {_mm512_maskz_loadu_epi32(first_lanes(n), p)}; }
  // Sixteen 16-bit numbers, their signs extended.
  static LaneInts load_halves(const void* p) {
    return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  static LaneInts load_halves_part(const void* p, int n) {
    return {_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
  }
  static LaneInts iota(int32_t first) {
    return {_mm512_add_epi32(_mm512_set1_epi32(first),
                             _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))};
  }
  void store(void* p) const { _mm512_storeu_si512(p, v); }
  void store_low_halves(void* p) const { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v)); }
};

struct LaneMask {
  __mmask16 v;
};

inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes sqrt(Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
inline LaneInts bits_of(Lanes a) { return {_mm512_castps_si512(a.v)}; }
inline Lanes from_bits(LaneInts a) { return {_mm512_castsi512_ps(a.v)}; }
inline LaneInts add(LaneInts a, LaneInts b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline LaneInts sub(LaneInts a, LaneInts b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline LaneInts bit_and(LaneInts a, LaneInts b) { return {_mm512_and_si512(a.v, b.v)}; }
inline LaneInts bit_or(LaneInts a, LaneInts b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int S>
inline LaneInts shift_left(LaneInts a) {
  return {_mm512_slli_epi32(a.v, S)};
}
template <int S>
inline LaneInts shift_right(LaneInts a) {
  return {_mm512_srli_epi32(a.v, S)};
}
template <int S>
inline LaneInts shift_right_signed(LaneInts a) {
  return {_mm512_srai_epi32(a.v, S)};
}
inline LaneInts to_ints(Lanes a) { return {_mm512_cvtps_epi32(a.v)}; }
inline Lanes to_floats(LaneInts a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline LaneMask greater(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline LaneMask greater_equal(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline LaneMask greater(LaneInts a, LaneInts b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
inline LaneMask both(LaneMask a, LaneMask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
inline uint32_t bits_of(LaneMask m) { return m.v; }
inline Lanes select(LaneMask m, Lanes yes, Lanes no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline LaneInts select(LaneMask m, LaneInts yes, LaneInts no) { return {_mm512_mask_blend_epi32(m.v, no.v, yes.v)}; }

// As math_body.h's, in one instruction behind the comparison.
inline Lanes scaled_or_zero(Lanes p, LaneInts, Lanes rounded, Lanes x) {
  const __mmask16 there = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(there, p.v, rounded.v)};
}

inline float first_of(Lanes a) { return _mm512_cvtss_f32(a.v); }

// The intrinsic reductions use this tree too, but do not promise it.
inline float tree_sum(Lanes a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float max_of(Lanes a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

}  // namespace
}  // namespace quire::kernels
