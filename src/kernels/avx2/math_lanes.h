// Sixteen fp32 lanes in two ymm registers. scalar/math_lanes.h says what the operations mean.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels {
namespace {

// Parts of a vector go through memory: masked moves would do, but checkers of memory take them for whole ones.
struct alignas(64) Part {
  float v[16] = {};
};

struct Lanes {
  __m256 lo, hi;

  static constexpr int kCount = 16;
  static Lanes set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Lanes load_part(const float* p, int n) {
    Part part;
    __builtin_memcpy(part.v, p, static_cast<size_t>(n) * 4);
    return load(part.v);
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, lo);
    _mm256_storeu_ps(p + 8, hi);
  }
  void store_part(float* p, int n) const {
    Part part;
    store(part.v);
    __builtin_memcpy(p, part.v, static_cast<size_t>(n) * 4);
  }
};

struct LaneInts {
  __m256i lo, hi;

  static LaneInts set(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static LaneInts load(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static LaneInts load_part(const void* p, int n) {
    Part part;
    __builtin_memcpy(part.v, p, static_cast<size_t>(n) * 4);
    return load(part.v);
  }
  static LaneInts load_halves(const void* p) {
    const auto* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtepi16_epi32(_mm_loadu_si128(q)), _mm256_cvtepi16_epi32(_mm_loadu_si128(q + 1))};
  }
  static LaneInts load_halves_part(const void* p, int n) {
    alignas(16) int16_t part[16] = {};
    __builtin_memcpy(part, p, static_cast<size_t>(n) * 2);
    return load_halves(part);
  }
  static LaneInts iota(int32_t first) {
    const __m256i step = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    return {_mm256_add_epi32(_mm256_set1_epi32(first), step), _mm256_add_epi32(_mm256_set1_epi32(first + 8), step)};
  }
  void store(void* p) const {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, lo);
    _mm256_storeu_si256(q + 1, hi);
  }
  void store_low_halves(void* p) const {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    const __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
  }
};

struct LaneMask {
  __m256 lo, hi;
};

inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Lanes sqrt(Lanes a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline LaneInts bits_of(Lanes a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline Lanes from_bits(LaneInts a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline LaneInts add(LaneInts a, LaneInts b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline LaneInts sub(LaneInts a, LaneInts b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline LaneInts bit_and(LaneInts a, LaneInts b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline LaneInts bit_or(LaneInts a, LaneInts b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int S>
inline LaneInts shift_left(LaneInts a) {
  return {_mm256_slli_epi32(a.lo, S), _mm256_slli_epi32(a.hi, S)};
}
template <int S>
inline LaneInts shift_right(LaneInts a) {
  return {_mm256_srli_epi32(a.lo, S), _mm256_srli_epi32(a.hi, S)};
}
template <int S>
inline LaneInts shift_right_signed(LaneInts a) {
  return {_mm256_srai_epi32(a.lo, S), _mm256_srai_epi32(a.hi, S)};
}
inline LaneInts to_ints(Lanes a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline Lanes to_floats(LaneInts a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline LaneMask greater(Lanes a, Lanes b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
inline LaneMask greater_equal(Lanes a, Lanes b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
inline LaneMask greater(LaneInts a, LaneInts b) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi))};
}
inline LaneMask both(LaneMask a, LaneMask b) { return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)}; }
inline uint32_t bits_of(LaneMask m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}
inline Lanes select(LaneMask m, Lanes yes, Lanes no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
inline LaneInts select(LaneMask m, LaneInts yes, LaneInts no) {
  return bits_of(select(m, from_bits(yes), from_bits(no)));
}

inline float first_of(Lanes a) { return _mm256_cvtss_f32(a.lo); }

inline float tree_sum(Lanes a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float max_of(Lanes a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

}  // namespace
}  // namespace quire::kernels
