// The fp32 functions of math.h for any lanes: include after a math_lanes.h. One source, hence the same bits everywhere.
#pragma once

namespace quire::kernels {
namespace {

// 2^f - 1 = f * (k[0] + k[1] f + ...) on [-1/2, 1/2]: minimax in the relative error of 2^f, 9.3e-8.
constexpr float kExp2[5] = {0.693147004F, 0.240222469F, 0.0555071123F, 0.00967129413F, 0.00132694072F};
// (log(1+f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]: 6e-9 of the logarithm.
constexpr float kLog[8] = {0.333333313F, -0.250008196F, 0.200012416F, -0.166234091F,
                           0.1420158F,   -0.131596103F, 0.127622172F, -0.0763643906F};
// (tanh(x) - x) / x^3 in x^2, |x| <= 0.625: 5e-9.
constexpr float kTanh[5] = {-0.333332807F, 0.133314058F, -0.0537365153F, 0.0206281673F, -0.0056922962F};
constexpr float kLog2e = 1.44269502F;         // rounded to fp32
constexpr float kLog2eRest = 1.92596303e-8F;  // log2(e) - kLog2e
constexpr float kLn2High = 0.692871094F;      // 11 bits, so that n * kLn2High is exact
constexpr float kLn2Low = 0.000276086823F;    // ln(2) - kLn2High
constexpr float kInfinity = __builtin_inff();

template <class V, int N>
inline V polynomial(V x, const float (&k)[N]) {
  V p = V::set(k[N - 1]);
#pragma GCC unroll 8
  for (int i = N - 2; i >= 0; i--) p = fma(p, x, V::set(k[i]));
  return p;
}

// 2^(n + f) for |f| <= 1/2 and -126 <= n <= 128: n is added to the exponent.
template <class V, class I>
inline V scaled_exp2(I n, V f) {
  const V p = fma(polynomial(f, kExp2), f, V::set(1));
  return from_bits(add(bits_of(p), shift_left<23>(n)));
}

// p * 2^n, of which the result is normal, or 0 where x is below -126; `rounded` is n too.
template <class V, class I>
inline V scaled_or_zero(V p, I n, V /*rounded*/, V x) {
  return select(greater(V::set(-126), x), V::set(0), from_bits(add(bits_of(p), shift_left<23>(n))));
}

// x <= 128, or NaN, which stays NaN. Softmax needs no more.
template <class V>
inline V exp2_bounded(V x) {
  const auto n = to_ints(x);
  const V rounded = to_floats(n);
  const V f = sub(x, rounded);
  return scaled_or_zero(fma(polynomial(f, kExp2), f, V::set(1)), n, rounded, x);
}

template <class V>
inline V exp2_lanes(V x) {
  return select(greater_equal(x, V::set(128)), V::set(kInfinity), exp2_bounded(x));
}

// The exponent is reduced with two parts of log2(e). Strictly above -126, f is not negative where n = -126. NaN stays
// NaN: it compares with nothing, and its n adds nothing to its bits.
template <class V>
inline V exp_lanes(V x) {
  const V t = mul(x, V::set(kLog2e));
  const auto n = to_ints(t);
  const V rounded = to_floats(n);
  V f = fma(x, V::set(kLog2e), sub(V::set(0), rounded));
  f = fma(x, V::set(kLog2eRest), f);
  const V y = select(greater_equal(V::set(-126), t), V::set(0), scaled_exp2(n, f));
  return select(greater_equal(t, V::set(128)), V::set(kInfinity), y);
}

// x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log(x) = e ln(2) + log(1 + (m - 1)).
template <class V>
inline V log_lanes(V x) {
  using I = decltype(bits_of(x));
  const I half = I::set(0x3f3504f3);  // sqrt(1/2)
  const I offset = sub(bits_of(x), half);
  const V e = to_floats(shift_right_signed<23>(offset));
  const V f = sub(from_bits(add(bit_and(offset, I::set(0x007fffff)), half)), V::set(1));
  const V square = mul(f, f);
  V small = fma(polynomial(f, kLog), f, V::set(-0.5F));
  small = fma(e, V::set(kLn2Low), mul(small, square));
  V y = fma(e, V::set(kLn2High), add(f, small));
  y = select(greater(x, V::set(0)), y,
             select(greater_equal(x, V::set(0)), V::set(-kInfinity), V::set(__builtin_nanf(""))));
  return select(greater_equal(x, V::set(kInfinity)), x, y);
}

// A polynomial near 0, else 1 - 2 / (e^2|x| + 1) with the sign of x.
template <class V>
inline V tanh_lanes(V x) {
  using I = decltype(bits_of(x));
  const I sign = bit_and(bits_of(x), I::set(static_cast<int32_t>(0x80000000U)));
  const V size = from_bits(bit_and(bits_of(x), I::set(0x7fffffff)));
  const V square = mul(x, x);
  const V near = fma(mul(polynomial(square, kTanh), square), x, x);
  const V e = exp_lanes(add(size, size));
  const V far = sub(V::set(1), div(V::set(2), add(e, V::set(1))));
  return from_bits(bit_or(bits_of(select(greater(size, V::set(0.625F)), far, near)), sign));
}

// x * sigmoid(x), as one division.
template <class V>
inline V silu_lanes(V x) {
  return div(x, add(V::set(1), exp_lanes(sub(V::set(0), x))));
}

template <class V>
inline V sigmoid_lanes(V x) {
  return div(V::set(1), add(V::set(1), exp_lanes(sub(V::set(0), x))));
}

}  // namespace
}  // namespace quire::kernels
