// N fp32 lanes in portable code: the meaning of every lane operation, and what CPUs without kernels of their own run.
//
// Files that include this must flush denormals like all kernels. Everything has internal linkage, as in the lanes of
// other instruction sets, so that the linker never mixes them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::kernels {
namespace {

template <int N>
struct ScalarLanes {
  float v[N];

  static constexpr int kCount = N;
  static ScalarLanes set(float x) {
    ScalarLanes r;
    for (float& lane : r.v) lane = x;
    return r;
  }
  static ScalarLanes load(const float* p) {
    ScalarLanes r;
    for (int i = 0; i < N; i++) r.v[i] = p[i];
    return r;
  }
  // The first n; the rest is zero, and not touched in memory.
  static ScalarLanes load_part(const float* p, int n) {
    ScalarLanes r = set(0);
    for (int i = 0; i < n; i++) r.v[i] = p[i];
    return r;
  }
  void store(float* p) const {
    for (int i = 0; i < N; i++) p[i] = v[i];
  }
  void store_part(float* p, int n) const {
    for (int i = 0; i < n; i++) p[i] = v[i];
  }
};

template <int N>
struct ScalarInts {
  int32_t v[N];

  static ScalarInts set(int32_t x) {
    ScalarInts r;
    for (int32_t& lane : r.v) lane = x;
    return r;
  }
  static ScalarInts load(const void* p) {
    ScalarInts r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static ScalarInts load_part(const void* p, int n) {
    ScalarInts r = set(0);
    __builtin_memcpy(r.v, p, static_cast<size_t>(n) * 4);
    return r;
  }
  // N 16-bit numbers, their signs extended; or the first n, the rest being zero.
  static ScalarInts load_halves(const void* p) { return load_halves_part(p, N); }
  static ScalarInts load_halves_part(const void* p, int n) {
    int16_t halves[N] = {};
    __builtin_memcpy(halves, p, static_cast<size_t>(n) * 2);
    ScalarInts r;
    for (int i = 0; i < N; i++) r.v[i] = halves[i];
    return r;
  }
  static ScalarInts iota(int32_t first) {
    ScalarInts r;
    for (int i = 0; i < N; i++) r.v[i] = first + i;
    return r;
  }
  void store(void* p) const { __builtin_memcpy(p, v, sizeof v); }
  // The lower 16 bits of each lane, side by side.
  void store_low_halves(uint16_t* p) const {
    for (int i = 0; i < N; i++) p[i] = static_cast<uint16_t>(v[i]);
  }
};

template <int N>
struct ScalarMask {
  bool v[N];
};

template <int N, class F>
inline ScalarLanes<N> each(F f) {
  ScalarLanes<N> r;
  for (int i = 0; i < N; i++) r.v[i] = f(i);
  return r;
}
template <int N, class F>
inline ScalarInts<N> each_int(F f) {
  ScalarInts<N> r;
  for (int i = 0; i < N; i++) r.v[i] = f(i);
  return r;
}
template <int N, class F>
inline ScalarMask<N> each_mask(F f) {
  ScalarMask<N> r;
  for (int i = 0; i < N; i++) r.v[i] = f(i);
  return r;
}

template <int N>
inline ScalarLanes<N> add(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each<N>([&](int i) { return a.v[i] + b.v[i]; });
}
template <int N>
inline ScalarLanes<N> sub(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each<N>([&](int i) { return a.v[i] - b.v[i]; });
}
template <int N>
inline ScalarLanes<N> mul(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each<N>([&](int i) { return a.v[i] * b.v[i]; });
}
template <int N>
inline ScalarLanes<N> div(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each<N>([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, rounded once.
template <int N>
inline ScalarLanes<N> fma(ScalarLanes<N> a, ScalarLanes<N> b, ScalarLanes<N> c) {
  return each<N>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// a > b ? a : b, so b where one is NaN.
template <int N>
inline ScalarLanes<N> max(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each<N>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
inline ScalarInts<N> bits_of(ScalarLanes<N> a) {
  return std::bit_cast<ScalarInts<N>>(a);
}
template <int N>
inline ScalarLanes<N> from_bits(ScalarInts<N> a) {
  return std::bit_cast<ScalarLanes<N>>(a);
}
template <int N>
inline ScalarInts<N> add(ScalarInts<N> a, ScalarInts<N> b) {
  return each_int<N>(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])); });
}
template <int N>
inline ScalarInts<N> sub(ScalarInts<N> a, ScalarInts<N> b) {
  return each_int<N>(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])); });
}
template <int N>
inline ScalarInts<N> bit_and(ScalarInts<N> a, ScalarInts<N> b) {
  return each_int<N>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int N>
inline ScalarInts<N> bit_or(ScalarInts<N> a, ScalarInts<N> b) {
  return each_int<N>([&](int i) { return a.v[i] | b.v[i]; });
}
template <int S, int N>
inline ScalarInts<N> shift_left(ScalarInts<N> a) {
  return each_int<N>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << S); });
}
template <int S, int N>
inline ScalarInts<N> shift_right(ScalarInts<N> a) {  // zeros enter
  return each_int<N>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> S); });
}
template <int S, int N>
inline ScalarInts<N> shift_right_signed(ScalarInts<N> a) {
  return each_int<N>([&](int i) { return a.v[i] >> S; });
}
// To nearest even; the most negative integer where that does not fit and for NaN.
template <int N>
inline ScalarInts<N> to_ints(ScalarLanes<N> a) {
  return each_int<N>([&](int i) {
    const float x = a.v[i];
    if (!(x >= -2147483648.0F && x < 2147483648.0F)) return std::numeric_limits<int32_t>::min();
    if (x > 4194304.0F || x < -4194304.0F) return static_cast<int32_t>(__builtin_rintf(x));
    constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits
    return static_cast<int32_t>((x + kRound) - kRound);
  });
}
template <int N>
inline ScalarLanes<N> to_floats(ScalarInts<N> a) {
  return each<N>([&](int i) { return static_cast<float>(a.v[i]); });
}
template <int N>
inline ScalarMask<N> greater(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each_mask<N>([&](int i) { return a.v[i] > b.v[i]; });
}
template <int N>
inline ScalarMask<N> greater_equal(ScalarLanes<N> a, ScalarLanes<N> b) {
  return each_mask<N>([&](int i) { return a.v[i] >= b.v[i]; });
}
template <int N>
inline ScalarMask<N> greater(ScalarInts<N> a, ScalarInts<N> b) {
  return each_mask<N>([&](int i) { return a.v[i] > b.v[i]; });
}
template <int N>
inline ScalarMask<N> both(ScalarMask<N> a, ScalarMask<N> b) {
  return each_mask<N>([&](int i) { return a.v[i] && b.v[i]; });
}
// Lane 0 in bit 0.
template <int N>
inline uint32_t bits_of(ScalarMask<N> m) {
  uint32_t bits = 0;
  for (int i = 0; i < N; i++) bits |= uint32_t{m.v[i]} << i;
  return bits;
}
template <int N>
inline ScalarLanes<N> select(ScalarMask<N> m, ScalarLanes<N> yes, ScalarLanes<N> no) {
  return each<N>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
template <int N>
inline ScalarInts<N> select(ScalarMask<N> m, ScalarInts<N> yes, ScalarInts<N> no) {
  return each_int<N>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
template <int N>
inline ScalarLanes<N> sqrt(ScalarLanes<N> a) {
  return each<N>([&](int i) { return __builtin_sqrtf(a.v[i]); });
}

using Lanes = ScalarLanes<16>;
using LaneInts = ScalarInts<16>;
using LaneMask = ScalarMask<16>;

inline float first_of(Lanes a) { return a.v[0]; }

// Sum in the tree i+8, i+4, i+2, i+1.
inline float tree_sum(Lanes a) {
  for (int step = 8; step != 0; step /= 2)
    for (int i = 0; i < step; i++) a.v[i] = a.v[i] + a.v[i + step];
  return a.v[0];
}
inline float max_of(Lanes a) {
  for (int step = 8; step != 0; step /= 2)
    for (int i = 0; i < step; i++) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  return a.v[0];
}

}  // namespace
}  // namespace quire::kernels
