#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/row_ops.h"

namespace quire::kernels {
namespace {

long double frequency(const RopeParameters& p, int i) {
  return std::pow(static_cast<long double>(p.theta), -2.0L * i / p.rotary_dim);
}

// Half a unit of rounding to fp32, and what the double angle may be off at these positions.
constexpr float kTolerance = 6.1e-8F;

TEST(Rope, TablesAreRoundedExactValues) {
  Allocator memory;
  ThreadPool pool(2);
  for (const double theta : {10000.0, 500000.0, 1000000.0})
    for (const int dim : {16, 24, 64, 128, 256}) {
      const RopeParameters p = {.theta = theta, .rotary_dim = dim};
      auto table = RopeTable::make(p, 200000, memory);
      ASSERT_TRUE(table);
      table->prepare(3, pool);
      EXPECT_EQ(table->prepared(), 512);
      const bool deep = theta == 10000 && dim == 64;
      table->prepare(deep ? 130001 : 4096, pool);
      for (const int position : {0, 1, 2, 511, 512, 4095, 65537, 130000}) {
        if (position >= table->prepared()) break;
        for (int i = 0; i < dim / 2; i++) {
          const long double angle = position * frequency(p, i);
          ASSERT_NEAR(table->cos(position)[i], static_cast<double>(std::cos(angle)), kTolerance)
              << position << " " << i;
          ASSERT_NEAR(table->sin(position)[i], static_cast<double>(std::sin(angle)), kTolerance)
              << position << " " << i;
        }
      }
    }
}

TEST(Rope, RowsDoNotDependOnWhenTheyAreMade) {
  Allocator memory;
  ThreadPool one(1), two(2);
  const RopeParameters p = {.theta = 10000, .rotary_dim = 64};
  auto a = RopeTable::make(p, 3000, memory), b = RopeTable::make(p, 3000, memory);
  for (int end : {1, 600, 601, 3000}) a->prepare(end, one);
  b->prepare(3000, two);
  EXPECT_EQ(std::memcmp(a->cos(0), b->cos(0), 3000 * 64 * sizeof(float)), 0);
}

TEST(Rope, ScalingOfFrequencies) {
  RopeParameters p = {.type = RopeType::kLinear, .theta = 1e6, .rotary_dim = 32, .factor = 8};
  auto inverse = rope_inverse_frequencies(p);
  for (int i = 0; i < 16; i++)
    EXPECT_NEAR(inverse[static_cast<size_t>(i)], static_cast<double>(frequency(p, i) / 8), 1e-16);

  // Without a blend between them, as Llama 4 has it.
  p = {.type = RopeType::kLlama3,
       .theta = 500000,
       .rotary_dim = 128,
       .factor = 16,
       .low_freq_factor = 1,
       .high_freq_factor = 1,
       .original_max_position = 8192};
  inverse = rope_inverse_frequencies(p);
  for (int i = 0; i < 64; i++) {
    const long double f = frequency(p, i), divisor = 2 * std::numbers::pi_v<long double> / f > 8192.0L ? 16 : 1;
    EXPECT_NEAR(inverse[static_cast<size_t>(i)], static_cast<double>(f / divisor), 1e-16) << i;
  }

  p = {.type = RopeType::kLlama3,
       .theta = 500000,
       .rotary_dim = 128,
       .factor = 32,
       .low_freq_factor = 1,
       .high_freq_factor = 4,
       .original_max_position = 8192};
  inverse = rope_inverse_frequencies(p);
  int kept = 0, divided = 0, blended = 0;
  for (int i = 0; i < 64; i++) {
    const long double f = frequency(p, i), wavelength = 2 * std::numbers::pi_v<long double> / f;
    long double want = 0;
    if (wavelength < 8192.0L / 4) {
      want = f, kept++;
    } else if (wavelength > 8192.0L) {
      want = f / 32, divided++;
    } else {
      const long double smooth = (8192 / wavelength - 1) / 3;
      want = (1 - smooth) * f / 32 + smooth * f, blended++;
    }
    EXPECT_NEAR(inverse[static_cast<size_t>(i)] / static_cast<double>(want), 1, 1e-14) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(blended, 0);
}

TEST(Rope, ApplyTurnsTheFirstDimensionsOnly) {
  Allocator memory;
  ThreadPool pool(1);
  auto table = kernel_table(Isa::kScalar, {});
  ASSERT_TRUE(table);
  for (const bool interleaved : {false, true}) {
    const RopeParameters p = {.theta = 10000, .rotary_dim = 4, .interleaved = interleaved, .attention_factor = 2};
    auto rope = RopeTable::make(p, 10, memory);
    rope->prepare(10, pool);
    float x[12] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6};
    apply_rope(*table, *rope, 7, x, 2, 6);
    const int other = interleaved ? 1 : 2;
    const float c = rope->cos(7)[0], s = rope->sin(7)[0];
    EXPECT_NEAR(c, 2 * std::cos(7.0), 2e-7);
    for (const int head : {0, 6}) {
      EXPECT_EQ(x[head], std::fma(1.0F, c, -((1.0F + static_cast<float>(other)) * s)));
      EXPECT_EQ(x[head + other], std::fma(1.0F + static_cast<float>(other), c, 1.0F * s));
      EXPECT_EQ(x[head + 4], 5);
      EXPECT_EQ(x[head + 5], 6);
    }
  }
}

TEST(Rope, BadParametersAreErrors) {
  Allocator memory;
  const auto refused = [&](RopeParameters p, int positions = 100) {
    auto table = RopeTable::make(p, positions, memory);
    return !table && table.error().kind == ErrorKind::kUnsupported && !table.error().message.empty();
  };
  const double nan = std::nan("");
  EXPECT_FALSE(refused({.rotary_dim = 64}));
  EXPECT_TRUE(refused({.rotary_dim = 0}));
  EXPECT_TRUE(refused({.rotary_dim = 7}));
  EXPECT_TRUE(refused({.rotary_dim = -2}));
  EXPECT_TRUE(refused({.theta = 0, .rotary_dim = 64}));
  EXPECT_TRUE(refused({.theta = nan, .rotary_dim = 64}));
  EXPECT_TRUE(refused({.rotary_dim = 64, .factor = 0}));
  EXPECT_TRUE(refused({.rotary_dim = 64, .factor = 1e-9}));
  EXPECT_TRUE(refused({.rotary_dim = 64, .attention_factor = nan}));
  EXPECT_TRUE(refused({.type = RopeType::kLlama3, .rotary_dim = 64, .low_freq_factor = 4, .high_freq_factor = 3}));
  EXPECT_TRUE(refused({.type = RopeType::kLlama3, .rotary_dim = 64, .low_freq_factor = nan}));
  EXPECT_TRUE(refused({.type = RopeType::kLlama3, .rotary_dim = 64, .original_max_position = 0}));
  for (const RopeType type : {RopeType::kYarn, RopeType::kDynamic}) {
    const RopeParameters good = {.type = type, .rotary_dim = 64, .factor = 2, .longest = 4096};
    EXPECT_FALSE(refused(good));
    RopeParameters p = good;
    p.original_max_position = nan;
    EXPECT_TRUE(refused(p));
    p = good;
    (type == RopeType::kYarn ? p.beta_slow : p.longest) = 0;
    EXPECT_TRUE(refused(p));
    p = good;
    (type == RopeType::kYarn ? p.beta_fast : p.factor) = 0.5;
    EXPECT_TRUE(refused(p));
  }
  EXPECT_TRUE(refused({.rotary_dim = 4, .long_divisors = {1, 1}}));
  EXPECT_FALSE(refused({.rotary_dim = 4, .long_divisors = {1, 1}, .longest = 10}));
  EXPECT_TRUE(refused({.rotary_dim = 4, .long_divisors = {1}, .longest = 10}));
  EXPECT_TRUE(refused({.rotary_dim = 4, .long_divisors = {1, 0}, .longest = 10}));
  EXPECT_TRUE(refused({.rotary_dim = 64}, 0));
  EXPECT_TRUE(refused({.rotary_dim = 64}, 1 << 30));
}

}  // namespace
}  // namespace quire::kernels
