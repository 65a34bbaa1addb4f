#include "kernels/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_numbers.h"

namespace quire::kernels {
namespace {

constexpr GatedDeltaShape kShape{.heads = 3, .key_dim = 20, .value_dim = 12, .conv_width = 4};
constexpr int kTokens = 50;
constexpr size_t kStride = 3 * (2 * 20 + 12) + 6 + 5;
constexpr size_t kOut = 3 * 12 + 1;

// One sequence and its weights.
struct World {
  std::vector<float> conv = test_numbers(static_cast<size_t>(kShape.channels()) * 4, 1);
  std::vector<float> decay = test_numbers(3, 2), dt_bias = test_numbers(3, 3);
  std::vector<float> x = test_numbers(kTokens * kStride, 4);

  // Besides a usual head one that forgets very slowly per unit, in many units, and one that forgets at once.
  World() {
    decay[1] = 8;
    dt_bias[1] = -10;
    dt_bias[2] = 25;
  }

  // Tokens [first, first + count) of the sequence; the state goes from one buffer to another.
  void run(int first, int count, const float* from, float* to, std::vector<float>& out, int threads = 1) const {
    ThreadPool pool(threads);
    const float* a = x.data() + kShape.channels();
    const GatedDeltaSequence sequence{.from = from, .to = to, .first_row = first, .num_rows = count};
    gated_delta({.shape = kShape,
                 .conv = conv.data(),
                 .decay = decay.data(),
                 .dt_bias = dt_bias.data(),
                 .x = x.data(),
                 .a = a,
                 .b = a + 3,
                 .stride = kStride,
                 .out = out.data(),
                 .out_stride = kOut},
                {&sequence, 1}, pool);
  }
};

std::vector<float> nans(size_t n) { return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN()); }

TEST(GatedDelta, AnySplitGivesTheSameBits) {
  const World world;
  const size_t size = gated_delta_state_size(kShape);
  std::vector<float> want(kTokens * kOut), state = nans(size);
  world.run(0, kTokens, nullptr, state.data(), want);
  for (const int step : {1, 2, 3, 7, 49})
    for (const bool moving : {false, true}) {
      std::vector<float> got(kTokens * kOut), a = nans(size), b = nans(size);
      const float* from = nullptr;
      float* to = a.data();
      for (int first = 0; first < kTokens; first += step) {
        world.run(first, std::min(step, kTokens - first), from, to, got, 2);
        from = to;
        if (moving) to = to == a.data() ? b.data() : a.data();
      }
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << step;
      EXPECT_EQ(std::memcmp(from, state.data(), size * sizeof(float)), 0) << step;
    }
}

// The state before a step stays as it was, for others that begin with it.
TEST(GatedDelta, LeavesTheStateItReads) {
  const World world;
  const size_t size = gated_delta_state_size(kShape);
  std::vector<float> out(kTokens * kOut), before = nans(size), after = nans(size);
  world.run(0, 20, nullptr, before.data(), out);
  const auto copy = before;
  world.run(20, 5, before.data(), after.data(), out);
  EXPECT_EQ(std::memcmp(copy.data(), before.data(), size * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(copy.data(), after.data(), size * sizeof(float)), 0);
}

// Against the equations in double.
TEST(GatedDelta, IsTheRule) {
  const World world;
  std::vector<float> got(kTokens * kOut), state(gated_delta_state_size(kShape));
  world.run(0, kTokens, nullptr, state.data(), got);
  const auto input = [&](int token, int channel) {
    return token < 0
               ? 0.0
               : static_cast<double>(world.x[static_cast<size_t>(token) * kStride + static_cast<size_t>(channel)]);
  };
  const auto silu_conv = [&](int token, int channel) {
    double sum = 0;
    for (int t = 0; t < 4; t++)
      sum += static_cast<double>(world.conv[static_cast<size_t>(channel * 4 + t)]) * input(token - 3 + t, channel);
    return sum / (1 + std::exp(-sum));
  };
  for (int h = 0; h < 3; h++) {
    double s[20][12] = {};
    for (int token = 0; token < kTokens; token++) {
      double q[20], k[20], qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < 20; i++) {
        q[i] = silu_conv(token, h * 20 + i);
        k[i] = silu_conv(token, 60 + h * 20 + i);
        qq += q[i] * q[i];
        kk += k[i] * k[i];
      }
      const auto at = static_cast<size_t>(h);
      const double dt =
          std::log1p(std::exp(input(token, kShape.channels() + h) + static_cast<double>(world.dt_bias[at])));
      const double decay = std::exp(-std::exp(static_cast<double>(world.decay[at])) * dt);
      const double beta = 1 / (1 + std::exp(-input(token, kShape.channels() + 3 + h)));
      for (int j = 0; j < 12; j++) {
        double seen = 0, out = 0;
        for (int i = 0; i < 20; i++) seen += (s[i][j] *= decay) * k[i] / std::sqrt(kk);
        const double change = beta * (silu_conv(token, 120 + h * 12 + j) - seen);
        for (int i = 0; i < 20; i++) out += (s[i][j] += change * k[i] / std::sqrt(kk)) * q[i] / std::sqrt(qq * 20);
        ASSERT_NEAR(got[static_cast<size_t>(token) * kOut + static_cast<size_t>(h * 12 + j)], out, 2e-6) << token;
      }
    }
  }
}

TEST(GatedDelta, RefusesImpossibleShapes) {
  EXPECT_TRUE(check_gated_delta_shape(kShape));
  for (int GatedDeltaShape::* field :
       {&GatedDeltaShape::heads, &GatedDeltaShape::key_dim, &GatedDeltaShape::value_dim, &GatedDeltaShape::conv_width})
    for (const int value : {0, -1, 1 << 20}) {
      GatedDeltaShape shape = kShape;
      shape.*field = value;
      EXPECT_FALSE(check_gated_delta_shape(shape));
    }
}

}  // namespace
}  // namespace quire::kernels
