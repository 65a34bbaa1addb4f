#include "kernels/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_numbers.h"

namespace quire::kernels {
namespace {

constexpr int kHeads = 6, kKeys = 20, kValues = 12;
constexpr int kTokens = 50;
constexpr size_t kOut = kHeads * kValues + 1;

// One key head a head, or a key head of two neighbours, of two heads that lie apart, or of all.
constexpr GatedDeltaShape shape_of(int key_heads, bool tiled) {
  return {
      .heads = kHeads, .key_heads = key_heads, .tiled = tiled, .key_dim = kKeys, .value_dim = kValues, .conv_width = 4};
}
constexpr GatedDeltaShape kShapes[] = {shape_of(6, false), shape_of(3, false), shape_of(3, true), shape_of(1, true)};

class GatedDelta : public ::testing::TestWithParam<GatedDeltaShape> {
 protected:
  // Besides usual heads one that forgets very slowly per unit, in many units, and one that forgets at once.
  GatedDelta() {
    for (float& r : rate_) r = std::exp(r);
    rate_[1] = std::exp(8.0F);
    dt_bias_[1] = -10;
    dt_bias_[2] = 25;
  }

  // Tokens [first, first + count) of the sequence; the state goes from one buffer to another.
  void run(int first, int count, const float* from, float* to, std::vector<float>& out, int threads = 1) const {
    ThreadPool pool(threads);
    const float* a = x_.data() + shape_.channels();
    const GatedDeltaSequence sequence{.from = from, .to = to, .first_row = first, .num_rows = count};
    gated_delta({.shape = shape_,
                 .conv = conv_.data(),
                 .rate = rate_.data(),
                 .dt_bias = dt_bias_.data(),
                 .x = x_.data(),
                 .a = a,
                 .b = a + kHeads,
                 .stride = stride_,
                 .out = out.data(),
                 .out_stride = kOut},
                {&sequence, 1}, pool);
  }

  double input(int token, int channel) const {
    return token < 0 ? 0.0
                     : static_cast<double>(x_[static_cast<size_t>(token) * stride_ + static_cast<size_t>(channel)]);
  }
  double silu_conv(int token, int channel) const {
    double sum = 0;
    for (int t = 0; t < 4; t++)
      sum += static_cast<double>(conv_[static_cast<size_t>(channel * 4 + t)]) * input(token - 3 + t, channel);
    return sum / (1 + std::exp(-sum));
  }

  GatedDeltaShape shape_ = GetParam();
  size_t stride_ = static_cast<size_t>(shape_.channels()) + 2 * kHeads + 5;
  std::vector<float> conv_ = test_numbers(static_cast<size_t>(shape_.channels()) * 4, 1);
  std::vector<float> rate_ = test_numbers(kHeads, 2), dt_bias_ = test_numbers(kHeads, 3);
  std::vector<float> x_ = test_numbers(kTokens * stride_, 4);
};

std::vector<float> nans(size_t n) { return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN()); }

TEST_P(GatedDelta, AnySplitGivesTheSameBits) {
  const size_t size = gated_delta_state_size(shape_);
  std::vector<float> want(kTokens * kOut), state = nans(size);
  run(0, kTokens, nullptr, state.data(), want);
  for (const int step : {1, 2, 3, 7, 49})
    for (const bool moving : {false, true}) {
      std::vector<float> got(kTokens * kOut), a = nans(size), b = nans(size);
      const float* from = nullptr;
      float* to = a.data();
      for (int first = 0; first < kTokens; first += step) {
        run(first, std::min(step, kTokens - first), from, to, got, 2);
        from = to;
        if (moving) to = to == a.data() ? b.data() : a.data();
      }
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << step;
      EXPECT_EQ(std::memcmp(from, state.data(), size * sizeof(float)), 0) << step;
    }
}

// The state before a step stays as it was, for others that begin with it.
TEST_P(GatedDelta, LeavesTheStateItReads) {
  const size_t size = gated_delta_state_size(shape_);
  std::vector<float> out(kTokens * kOut), before = nans(size), after = nans(size);
  run(0, 20, nullptr, before.data(), out);
  const auto copy = before;
  run(20, 5, before.data(), after.data(), out);
  EXPECT_EQ(std::memcmp(copy.data(), before.data(), size * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(copy.data(), after.data(), size * sizeof(float)), 0);
}

// By the equations a NaN in a, b or dt_bias is in the state from its token on.
TEST_P(GatedDelta, KeepsWhatIsNoNumber) {
  constexpr size_t kToken = 30, kHead = 4;
  const size_t at = kToken * stride_ + static_cast<size_t>(shape_.channels()) + kHead;
  for (float* place : {&x_[at], &x_[at + kHeads], &dt_bias_[kHead]}) {
    const float before = std::exchange(*place, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> out(kTokens * kOut), state(gated_delta_state_size(shape_));
    run(0, kTokens, nullptr, state.data(), out);
    *place = before;
    for (size_t t = 0; t < kTokens; t++)
      for (size_t v = 0; v < kHeads * kValues; v++) {
        const bool reached = v / kValues == kHead && (t >= kToken || place == &dt_bias_[kHead]);
        EXPECT_EQ(std::isnan(out[t * kOut + v]), reached) << t << " " << v;
      }
  }
}

// Against the equations in double.
TEST_P(GatedDelta, IsTheRule) {
  std::vector<float> got(kTokens * kOut), state(gated_delta_state_size(shape_));
  run(0, kTokens, nullptr, state.data(), got);
  const int key_rows = shape_.key_heads * kKeys;
  for (int h = 0; h < kHeads; h++) {
    const int key_head = shape_.tiled ? h % shape_.key_heads : h / (kHeads / shape_.key_heads);
    double s[kKeys][kValues] = {};
    for (int token = 0; token < kTokens; token++) {
      double q[kKeys], k[kKeys], qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < kKeys; i++) {
        q[i] = silu_conv(token, key_head * kKeys + i);
        k[i] = silu_conv(token, key_rows + key_head * kKeys + i);
        qq += q[i] * q[i];
        kk += k[i] * k[i];
      }
      const auto at = static_cast<size_t>(h);
      const double dt = std::log1p(std::exp(input(token, shape_.channels() + h) + static_cast<double>(dt_bias_[at])));
      const double decay = std::exp(-static_cast<double>(rate_[at]) * dt);
      const double beta = 1 / (1 + std::exp(-input(token, shape_.channels() + kHeads + h)));
      for (int j = 0; j < kValues; j++) {
        double seen = 0, out = 0;
        for (int i = 0; i < kKeys; i++) seen += (s[i][j] *= decay) * k[i] / std::sqrt(kk);
        const double change = beta * (silu_conv(token, 2 * key_rows + h * kValues + j) - seen);
        for (int i = 0; i < kKeys; i++)
          out += (s[i][j] += change * k[i] / std::sqrt(kk)) * q[i] / std::sqrt(qq * kKeys);
        ASSERT_NEAR(got[static_cast<size_t>(token) * kOut + static_cast<size_t>(h * kValues + j)], out, 2e-6) << token;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDelta, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.key_heads) + (info.param.tiled ? "Tiled" : "Grouped");
});

TEST(GatedDeltaShapes, ImpossibleOnesAreRefused) {
  for (const GatedDeltaShape& shape : kShapes) EXPECT_TRUE(check_gated_delta_shape(shape));
  for (int GatedDeltaShape::* field : {&GatedDeltaShape::heads, &GatedDeltaShape::key_heads, &GatedDeltaShape::key_dim,
                                       &GatedDeltaShape::value_dim, &GatedDeltaShape::conv_width})
    for (const int value : {0, -1, 1 << 20}) {
      GatedDeltaShape shape = kShapes[1];
      shape.*field = value;
      EXPECT_FALSE(check_gated_delta_shape(shape));
    }
  const auto uneven = check_gated_delta_shape(shape_of(4, false));
  ASSERT_FALSE(uneven);
  EXPECT_NE(uneven.error().message.find("6 heads are no multiple of 4 key heads"), std::string::npos);
}

}  // namespace
}  // namespace quire::kernels
