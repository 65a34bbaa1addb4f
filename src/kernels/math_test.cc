#include "kernels/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "base/thread_pool.h"

namespace quire::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance in units in the last place of the exact result, as a number of type T.
template <class T>
long double ulps(T got, long double exact) {
  const T nearest = static_cast<T>(exact);
  const long double unit =
      std::abs(static_cast<long double>(std::nextafter(nearest, std::numeric_limits<T>::infinity())) - nearest);
  return std::abs(static_cast<long double>(got) - exact) / unit;
}

template <class F, class G>
long double worst(F ours, G exact, float low, float high, bool logarithmic = false) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<float> uniform(logarithmic ? std::log(low) : low, logarithmic ? std::log(high) : high);
  long double bad = 0;
  for (int i = 0; i < 1000000; i++) {
    const float u = uniform(rng), x = logarithmic ? std::exp(u) : u;
    bad = std::max(bad, ulps(ours(x), exact(static_cast<long double>(x))));
  }
  return bad;
}

TEST(Math, Exp2IsAccurate) {
  EXPECT_LT(worst(exp2, [](long double x) { return std::exp2(x); }, -125.9F, 127.9F), 2);
  EXPECT_LT(worst(exp2, [](long double x) { return std::exp2(x); }, -1, 1), 2);
  EXPECT_EQ(exp2(0), 1);
  EXPECT_EQ(exp2(-126), std::ldexp(1.0F, -126));
  EXPECT_EQ(exp2(std::nextafter(-126.0F, -200.0F)), 0);
  EXPECT_EQ(exp2(-kInf), 0);
  EXPECT_TRUE(std::isnan(exp2(kNan)));
  EXPECT_EQ(exp2(127), std::ldexp(1.0F, 127));
  EXPECT_LT(exp2(std::nextafter(128.0F, 0.0F)), kInf);
  EXPECT_EQ(exp2(128), kInf);
  EXPECT_EQ(exp2(1e30F), kInf);
}

TEST(Math, ExpIsAccurate) {
  EXPECT_LT(worst(exp, [](long double x) { return std::exp(x); }, -87.3F, 88.7F), 3);
  EXPECT_LT(worst(exp, [](long double x) { return std::exp(x); }, -1, 1), 3);
  EXPECT_EQ(exp(0), 1);
  EXPECT_EQ(exp(-kInf), 0);
  EXPECT_EQ(exp(-88), 0);
  EXPECT_EQ(exp(89), kInf);
  EXPECT_EQ(exp(kInf), kInf);
  EXPECT_EQ(exp(1e30F), kInf);
  EXPECT_EQ(exp(-1e30F), 0);
  EXPECT_TRUE(std::isnan(exp(kNan)));
}

TEST(Math, LogIsAccurate) {
  EXPECT_LT(worst(log, [](long double x) { return std::log(x); }, 1e-37F, 1e38F, true), 2);
  EXPECT_LT(worst(log, [](long double x) { return std::log(x); }, 0.5F, 2), 2);
  EXPECT_LT(worst(log, [](long double x) { return std::log(x); }, 0.9999F, 1.0001F), 2);
  EXPECT_EQ(log(1), 0);
  EXPECT_EQ(log(0), -kInf);
  EXPECT_EQ(log(kInf), kInf);
  EXPECT_TRUE(std::isnan(log(-1)));
  EXPECT_TRUE(std::isnan(log(kNan)));
}

TEST(Math, TanhIsAccurate) {
  EXPECT_LT(worst(tanh, [](long double x) { return std::tanh(x); }, -12, 12), 3);
  EXPECT_LT(worst(tanh, [](long double x) { return std::tanh(x); }, 1e-30F, 1, true), 3);
  EXPECT_EQ(tanh(0), 0);
  EXPECT_TRUE(std::signbit(tanh(-0.0F)));
  EXPECT_EQ(tanh(kInf), 1);
  EXPECT_EQ(tanh(-kInf), -1);
  EXPECT_EQ(tanh(-100), -1);
  EXPECT_TRUE(std::isnan(tanh(kNan)));
}

TEST(Math, SigmoidIsAccurate) {
  EXPECT_LT(worst(sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, -85, 30), 4);
  EXPECT_EQ(sigmoid(0), 0.5F);
  EXPECT_EQ(sigmoid(kInf), 1);
  EXPECT_EQ(sigmoid(-kInf), 0);
  EXPECT_TRUE(std::isnan(sigmoid(kNan)));
}

TEST(Math, SinAndCosInDouble) {
  std::mt19937_64 rng(6);
  std::uniform_real_distribution<double> exponent(-20, 25.9);
  for (int i = 0; i < 300000; i++) {
    const double x = (i % 2 == 0 ? 1 : -1) * std::exp2(exponent(rng));
    // Near a zero the long double oracle and the reduction both keep absolute precision only.
    for (auto [got, exact] : {std::pair{sin(x), std::sin(static_cast<long double>(x))},
                              std::pair{cos(x), std::cos(static_cast<long double>(x))}})
      ASSERT_LT(std::abs(got - exact), std::max(0x1p-53L, std::abs(exact) * 0x1p-52L)) << x;
  }
  EXPECT_EQ(sin(0), 0);
  EXPECT_EQ(cos(0), 1);
}

TEST(Math, PowInDouble) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> base(-20, 60), power(-1.5, 1.5);
  for (int i = 0; i < 300000; i++) {
    const double x = std::exp2(base(rng)), y = power(rng);
    ASSERT_LT(ulps(pow(x, y), std::pow(static_cast<long double>(x), static_cast<long double>(y))), 1) << x << " " << y;
  }
  EXPECT_EQ(pow(10000, 0), 1);
  EXPECT_EQ(pow(10000, -1), 1e-4);
  EXPECT_EQ(pow(2, -10), 0x1p-10);
  EXPECT_EQ(pow(1, 0.3), 1);
  EXPECT_EQ(pow(1e6, -0.5), 1e-3);
}

TEST(Math, NaturalLogarithmInDouble) {
  std::mt19937_64 rng(9);
  std::uniform_real_distribution<double> exponent(-1000, 1000), near_one(-0.1, 0.1);
  for (int i = 0; i < 300000; i++) {
    const double x = i % 2 == 0 ? std::exp2(exponent(rng)) : 1 + near_one(rng);
    ASSERT_LT(ulps(ln(x), std::log(static_cast<long double>(x))), 1) << x;
  }
  EXPECT_EQ(ln(1), 0);
}

TEST(Math, FlushToZeroChangesNothing) {
  std::vector<float> x;
  std::mt19937 rng(8);
  std::uniform_real_distribution<float> uniform(-100, 100);
  for (int i = 0; i < 10000; i++) x.push_back(uniform(rng));
  const auto all = [&] {
    std::vector<double> y;
    for (const float v : x)
      y.insert(y.end(), {exp2(v), exp(v), log(std::abs(v)), tanh(v), sin(v), cos(v), pow(100, v)});
    return y;
  };
  const auto before = all();
  set_flush_denormals();
  EXPECT_EQ(all(), before);
}

}  // namespace
}  // namespace quire::kernels
