#include "kernels/math.h"

#include <cmath>
#include <cstdint>

#include "kernels/scalar/math_lanes.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

ScalarLanes<1> lane(float x) { return {{x}}; }

// pi / 2 in two parts. n * kHalfPi is exact to 2^-52, so the first difference is exact for |n| < 2^26.
constexpr double kHalfPi = 0x1.921fb54442d18p+0;
constexpr double kHalfPiRest = 0x1.1a62633145c07p-54;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Adding it leaves no fraction bits of a number below 2^51: rounds to nearest even.
constexpr double kRound = 0x1.8p52;

// r - r^3/3! + ... to r^15, |r| <= pi/4: the rest is below 2^-54 of the result.
double sin_near_zero(double r) {
  const double z = r * r;
  double p = -1.0 / 1307674368000;
  p = std::fma(p, z, 1.0 / 6227020800);
  p = std::fma(p, z, -1.0 / 39916800);
  p = std::fma(p, z, 1.0 / 362880);
  p = std::fma(p, z, -1.0 / 5040);
  p = std::fma(p, z, 1.0 / 120);
  p = std::fma(p, z, -1.0 / 6);
  return std::fma(p * z, r, r);
}

// 1 - r^2/2! + ... to r^16.
double cos_near_zero(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000;
  p = std::fma(p, z, -1.0 / 87178291200);
  p = std::fma(p, z, 1.0 / 479001600);
  p = std::fma(p, z, -1.0 / 3628800);
  p = std::fma(p, z, 1.0 / 40320);
  p = std::fma(p, z, -1.0 / 720);
  p = std::fma(p, z, 1.0 / 24);
  p = std::fma(p, z, -0.5);
  return std::fma(p, z, 1.0);
}

// sin(x + quarters * pi/2)
double sin_shifted(double x, int64_t quarters) {
  const double n = (x * kTwoOverPi + kRound) - kRound;
  double r = std::fma(-n, kHalfPi, x);
  r = std::fma(-n, kHalfPiRest, r);
  const int64_t quadrant = (static_cast<int64_t>(n) + quarters) & 3;
  const double y = quadrant % 2 == 0 ? sin_near_zero(r) : cos_near_zero(r);
  return quadrant < 2 ? y : -y;
}

// An unevaluated sum: high is the sum rounded to double.
struct Pair {
  double high, low;
};

Pair two_sum(double a, double b) {  // |a| >= |b|
  const double high = a + b;
  return {high, b - (high - a)};
}

Pair times(Pair a, Pair b) {
  const double high = a.high * b.high;
  double low = std::fma(a.high, b.high, -high);
  low = std::fma(a.high, b.low, low);
  low = std::fma(a.low, b.high, low);
  return two_sum(high, low);
}

// log2(x): x = 2^e m, log(m) = 2 atanh(z) with z = (m - 1) / (m + 1), |z| < 0.172. Only z itself needs two parts.
Pair log2_pair(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdULL;
  const auto offset = static_cast<int64_t>(bits - kRootHalf);
  const double m = std::bit_cast<double>((static_cast<uint64_t>(offset) & 0x000fffffffffffffULL) + kRootHalf);
  const auto e = static_cast<double>(offset >> 52);

  const double top = m - 1;  // exact
  const Pair bottom = m > 1 ? two_sum(m, 1) : two_sum(1, m);
  const double z = top / bottom.high;
  const double z_rest = (std::fma(-z, bottom.high, top) - z * bottom.low) / bottom.high;
  const double square = z * z;
  double p = 1.0 / 25;
  for (int k = 23; k >= 3; k -= 2) p = std::fma(p, square, 1.0 / k);
  const Pair log = two_sum(2 * z, 2 * std::fma(p * square, z, z_rest));

  constexpr Pair kLog2E = {0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};
  const Pair part = times(log, kLog2E);
  if (e == 0) return part;
  const Pair sum = two_sum(e, part.high);
  return two_sum(sum.high, sum.low + part.low);
}

constexpr Pair kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

// 2^(high + low), |high| < 1000: the fraction times ln(2) goes into the series of e^x.
double exp2_pair(Pair x) {
  const double n = (x.high + kRound) - kRound;
  const Pair t = times(two_sum(x.high - n, x.low), kLn2);
  double p = 1.0 / 1307674368000;  // 1 / 15!
  constexpr double kReciprocal[] = {1.0 / 2,         1.0 / 6,          1.0 / 24,         1.0 / 120,     1.0 / 720,
                                    1.0 / 5040,      1.0 / 40320,      1.0 / 362880,     1.0 / 3628800, 1.0 / 39916800,
                                    1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200};
  for (int i = 12; i >= 0; i--) p = std::fma(p, t.high, kReciprocal[i]);
  const double y = 1 + (t.high + std::fma(p, t.high * t.high, t.low));
  return std::bit_cast<double>(std::bit_cast<uint64_t>(y) + (static_cast<uint64_t>(static_cast<int64_t>(n)) << 52));
}

}  // namespace

float exp2(float x) { return exp2_lanes(lane(x)).v[0]; }
float exp(float x) { return exp_lanes(lane(x)).v[0]; }
float log(float x) { return log_lanes(lane(x)).v[0]; }
float tanh(float x) { return tanh_lanes(lane(x)).v[0]; }
float sigmoid(float x) { return sigmoid_lanes(lane(x)).v[0]; }

double sin(double x) { return sin_shifted(x, 0); }
double cos(double x) { return sin_shifted(x, 1); }

double pow(double x, double y) {
  const Pair l = log2_pair(x);
  const double high = l.high * y;
  return exp2_pair(two_sum(high, std::fma(l.high, y, -high) + l.low * y));
}

double ln(double x) { return times(log2_pair(x), kLn2).high; }

}  // namespace quire::kernels
