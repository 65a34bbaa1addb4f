#include "kernels/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_numbers.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

constexpr int kHeads = 6, kKeys = 20, kValues = 12;
constexpr int kTokens = 50;
constexpr size_t kOut = kHeads * kValues + 1;

// One key head a head, or a key head of two neighbours, of two heads that lie apart, or of all; decays of heads, or of
// channels.
constexpr GatedDeltaShape shape_of(int key_heads, bool tiled, float decay_floor = 0) {
  return {.heads = kHeads,
          .key_heads = key_heads,
          .tiled = tiled,
          .key_dim = kKeys,
          .value_dim = kValues,
          .conv_width = 4,
          .decay_floor = decay_floor};
}
constexpr GatedDeltaShape kShapes[] = {shape_of(6, false), shape_of(3, false),     shape_of(3, true),
                                       shape_of(1, true),  shape_of(6, false, -5), shape_of(3, true, -0.5F)};

class GatedDelta : public ::testing::TestWithParam<GatedDeltaShape> {
 protected:
  // Besides usual heads one that forgets very slowly per unit, in many units, and one that forgets at once.
  GatedDelta() {
    for (float& r : rate_) r = std::exp(r);
    if (shape_.decays_by_channel()) return;
    rate_[1] = std::exp(8.0F);
    dt_bias_[1] = -10;
    dt_bias_[2] = 25;
  }

  // Tokens [first, first + count) of the sequence; the state goes from one buffer to another.
  void run(int first, int count, const float* from, float* to, std::vector<float>& out, int threads = 1,
           const KernelTable& table = test_tables().back()) const {
    ThreadPool pool(threads);
    const GatedDeltaSequence sequence{.from = from, .to = to, .first_row = first, .num_rows = count};
    gated_delta(table,
                {.shape = shape_,
                 .conv = conv_.data(),
                 .rate = rate_.data(),
                 .dt_bias = dt_bias_.data(),
                 .x = x_.data(),
                 .b = x_.data() + shape_.channels() + shape_.decays(),
                 .stride = stride_,
                 .a = x_.data() + shape_.channels(),
                 .a_stride = stride_,
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
      sum += static_cast<double>(conv_[static_cast<size_t>(t * shape_.channels() + channel)]) *
             input(token - 3 + t, channel);
    return sum / (1 + std::exp(-sum));
  }

  double decay(int token, int head, int channel) const {
    const int at = shape_.decays_by_channel() ? head * kKeys + channel : head;
    const double dt = input(token, shape_.channels() + at) + static_cast<double>(dt_bias_[static_cast<size_t>(at)]);
    const auto rate = static_cast<double>(rate_[static_cast<size_t>(head)]);
    if (!shape_.decays_by_channel()) return std::exp(-rate * std::log1p(std::exp(dt)));
    return std::exp(static_cast<double>(shape_.decay_floor) / (1 + std::exp(-rate * dt)));
  }

  GatedDeltaShape shape_ = GetParam();
  size_t stride_ = static_cast<size_t>(shape_.channels() + shape_.decays()) + kHeads + 5;
  std::vector<float> conv_ = test_numbers(static_cast<size_t>(shape_.channels()) * 4, 1);
  std::vector<float> rate_ = test_numbers(kHeads, 2), dt_bias_ = test_numbers(static_cast<size_t>(shape_.decays()), 3);
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

// By the equations a NaN in an input is in the state from its token on. One of q or k reaches all heads of its key
// head.
TEST_P(GatedDelta, KeepsWhatIsNoNumber) {
  constexpr int kToken = 30, kHead = 4;
  const int decay = shape_.decays_by_channel() ? kHead * kKeys + 7 : kHead;
  const int per_key = kHeads / shape_.key_heads;
  const auto key_head = [&](int head) { return shape_.tiled ? head % shape_.key_heads : head / per_key; };
  float* const row = &x_[kToken * stride_];
  const int q = key_head(kHead) * kKeys + 3, k = shape_.key_rows() + q, v = 2 * shape_.key_rows() + kHead * kValues + 5;
  enum class Reach { kKeyHead, kQuery, kHead, kValue, kAlways };
  const std::pair<float*, Reach> cases[] = {{row + q, Reach::kQuery},
                                            {row + k, Reach::kKeyHead},
                                            {row + v, Reach::kValue},
                                            {row + shape_.channels() + decay, Reach::kHead},
                                            {row + shape_.channels() + shape_.decays() + kHead, Reach::kHead},
                                            {&rate_[kHead], Reach::kAlways},
                                            {&dt_bias_[static_cast<size_t>(decay)], Reach::kAlways}};
  const auto reached = [&](Reach reach, int token, int head, int value) {
    if (reach == Reach::kAlways) return head == kHead;
    // The convolution sees a token's inputs for as long as it is wide; what is in the state stays.
    if (reach == Reach::kQuery)
      return key_head(head) == key_head(kHead) && token >= kToken && token < kToken + shape_.conv_width;
    if (token < kToken) return false;
    if (reach == Reach::kKeyHead) return key_head(head) == key_head(kHead);
    return head == kHead && (reach == Reach::kHead || value == 5);
  };
  for (const KernelTable& table : test_tables())
    for (const auto& [place, reach] : cases) {
      const float before = std::exchange(*place, std::numeric_limits<float>::quiet_NaN());
      std::vector<float> out(kTokens * kOut), state(gated_delta_state_size(shape_));
      run(0, kTokens, nullptr, state.data(), out, 1, table);
      *place = before;
      for (int t = 0; t < kTokens; t++)
        for (int head = 0; head < kHeads; head++)
          for (int value = 0; value < kValues; value++)
            ASSERT_EQ(std::isnan(out[static_cast<size_t>(t) * kOut + static_cast<size_t>(head * kValues + value)]),
                      reached(reach, t, head, value))
                << name_of(table.isa) << " " << (place - x_.data()) << " " << t << " " << head << " " << value;
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
      const double beta = 1 / (1 + std::exp(-input(token, shape_.channels() + shape_.decays() + h)));
      for (int j = 0; j < kValues; j++) {
        double seen = 0, out = 0;
        for (int i = 0; i < kKeys; i++) seen += (s[i][j] *= decay(token, h, i)) * k[i] / std::sqrt(kk);
        const double change = beta * (silu_conv(token, 2 * key_rows + h * kValues + j) - seen);
        for (int i = 0; i < kKeys; i++)
          out += (s[i][j] += change * k[i] / std::sqrt(kk)) * q[i] / std::sqrt(qq * kKeys);
        ASSERT_NEAR(got[static_cast<size_t>(token) * kOut + static_cast<size_t>(h * kValues + j)], out, 2e-6) << token;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDelta, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.key_heads) + (info.param.tiled ? "Tiled" : "Grouped") +
         (info.param.decays_by_channel() ? "Channels" : "Heads");
});

// Random shapes, three sequences of different lengths, with and without a state before; some numbers are huge or NaN.
TEST(GatedDeltaShapes, EveryInstructionSetGivesTheSameBits) {
  const auto tables = test_tables();
  std::mt19937 random(5);
  const auto up_to = [&](int n) { return 1 + static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 24; round++) {
    GatedDeltaShape shape{.key_heads = up_to(3),
                          .tiled = round % 2 == 0,
                          .key_dim = up_to(40),
                          .conv_width = up_to(5),
                          .decay_floor = round % 5 < 2 ? -5.0F : 0.0F};
    shape.heads = shape.key_heads * up_to(3);
    shape.value_dim = round % 3 == 0 ? 16 * up_to(7) : up_to(100);
    const auto heads = static_cast<size_t>(shape.heads), state = gated_delta_state_size(shape);
    const auto width = static_cast<size_t>(shape.channels()), decays = static_cast<size_t>(shape.decays());
    const size_t stride = width + decays + heads + 3;
    const size_t out_stride = static_cast<size_t>(shape.value_rows()) + 1;
    const int rows[] = {1, up_to(4), up_to(9)};
    const int all = rows[0] + rows[1] + rows[2];
    const auto conv = test_numbers(width * static_cast<size_t>(shape.conv_width), 1), bias = test_numbers(decays, 2);
    auto rate = test_numbers(heads, 3), x = test_numbers(static_cast<size_t>(all) * stride, 4);
    for (float& r : rate) r = std::abs(r) * 4;
    for (int i = 0; i < 5; i++) x[random() % x.size()] = std::ldexp(1.0F, static_cast<int>(random() % 200) - 100);
    if (round % 4 == 3) x[random() % stride] = std::numeric_limits<float>::quiet_NaN();
    const auto before = test_numbers(3 * state, 5);
    std::vector<float> want;
    for (const KernelTable& table : tables)
      for (const int threads : {1, 2}) {
        ThreadPool pool(threads);
        std::vector<float> states = before, out(static_cast<size_t>(all) * out_stride);
        std::vector<GatedDeltaSequence> sequences;
        for (int s = 0, row = 0; s < 3; row += rows[s++]) {
          float* own = states.data() + static_cast<size_t>(s) * state;
          sequences.push_back({.from = s == 1 ? nullptr : own, .to = own, .first_row = row, .num_rows = rows[s]});
        }
        gated_delta(table,
                    {.shape = shape,
                     .conv = conv.data(),
                     .rate = rate.data(),
                     .dt_bias = bias.data(),
                     .x = x.data(),
                     .b = x.data() + width + decays,
                     .stride = stride,
                     .a = x.data() + width,
                     .a_stride = stride,
                     .out = out.data(),
                     .out_stride = out_stride},
                    sequences, pool);
        out.insert(out.end(), states.begin(), states.end());
        for (float& number : out)
          if (std::isnan(number)) number = std::numeric_limits<float>::quiet_NaN();  // of two, either may come out
        if (want.empty()) want = out;
        EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0)
            << "round " << round << ", " << describe(table) << ", " << threads << " threads";
      }
  }
}

TEST(GatedDeltaShapes, ImpossibleOnesAreRefused) {
  for (const GatedDeltaShape& shape : kShapes) EXPECT_TRUE(check_gated_delta_shape(shape));
  for (int GatedDeltaShape::* field : {&GatedDeltaShape::heads, &GatedDeltaShape::key_heads, &GatedDeltaShape::key_dim,
                                       &GatedDeltaShape::value_dim, &GatedDeltaShape::conv_width})
    for (const int value : {0, -1, 1 << 20}) {
      GatedDeltaShape shape = kShapes[1];
      shape.*field = value;
      EXPECT_FALSE(check_gated_delta_shape(shape));
    }
  for (const float floor : {1.0F, -101.0F, std::numeric_limits<float>::quiet_NaN()}) {
    const auto refused = check_gated_delta_shape(shape_of(6, false, floor));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().param, "decay floor");
  }
  const auto uneven = check_gated_delta_shape(shape_of(4, false));
  ASSERT_FALSE(uneven);
  EXPECT_NE(uneven.error().message.find("6 heads are no multiple of 4 key heads"), std::string::npos);
}

}  // namespace
}  // namespace quire::kernels
