#include "kernels/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/math.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

std::vector<float> numbers(int n, float scale, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

// As numbers, with what might go wrong mixed in.
std::vector<float> hard_numbers(int n, unsigned seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  auto x = numbers(n, 20, seed);
  const float special[] = {0.0F,  -0.0F,  kInf,   -kInf,   1e38F, -1e38F, 1e-38F,
                           88.7F, -88.7F, 0.625F, -0.625F, 87.4F, -87.4F};
  for (size_t i = 0; i < x.size(); i += 3) x[i] = special[i / 3 % std::size(special)];
  return x;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); i++) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

class RowOps : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }
};

const int kLengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 576, 577, 1536};

// What numerics rule 5 says, written once more.
std::vector<float> norm_oracle(const std::vector<float>& x, const float* weight, float eps) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); i++) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
  const float inverse = 1.0F / std::sqrt(lanes[0] / static_cast<float>(x.size()) + eps);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); i++) y.push_back(weight == nullptr ? x[i] * inverse : x[i] * inverse * weight[i]);
  return y;
}

TEST_F(RowOps, NormFollowsTheRule) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths) {
      const auto a = numbers(n, 3, 1), b = numbers(n, 0.01F, 2), weight = numbers(n, 1, 3);
      std::vector<float> x(static_cast<size_t>(n) + 5), out(static_cast<size_t>(2 * n) + 3, 7.0F);
      x.insert(x.begin(), a.begin(), a.end());
      std::memcpy(x.data() + n + 5, b.data(), b.size() * 4);
      for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
        table.rows->rms_norm({.x = x.data(),
                              .x_stride = static_cast<size_t>(n) + 5,
                              .weight = w,
                              .eps = 1e-6F,
                              .rows = 2,
                              .n = n,
                              .out = out.data(),
                              .out_stride = static_cast<size_t>(n) + 2});
        const std::vector<float> first(out.begin(), out.begin() + n),
            second(out.begin() + n + 2, out.begin() + 2 * n + 2);
        EXPECT_TRUE(same(first, norm_oracle(a, w, 1e-6F))) << name_of(table.isa) << " " << n;
        EXPECT_TRUE(same(second, norm_oracle(b, w, 1e-6F))) << name_of(table.isa) << " " << n;
        EXPECT_EQ(out[static_cast<size_t>(n)], 7.0F);
        EXPECT_EQ(out.back(), 7.0F);
      }
    }
}

TEST_F(RowOps, ActivationsAreAccurate) {
  const auto gate = numbers(2000, 4, 1);
  const std::vector<float> up(2000, 1.0F);
  std::vector<float> silu(2000), gelu(2000), sigmoid(2000), clamped(2000), plain(2000);
  const RowKernels& rows = row_kernels_scalar();
  rows.silu_mul(gate.data(), up.data(), 2000, silu.data());
  rows.gelu_tanh_mul(gate.data(), up.data(), 2000, gelu.data());
  rows.sigmoid_mul(gate.data(), up.data(), 2000, sigmoid.data());
  rows.clamped_swiglu({gate.data(), gate.data(), 1.702F, 3, 1, 2000, clamped.data()});
  rows.clamped_swiglu({gate.data(), gate.data(), 1, 3, 0, 2000, plain.data()});
  for (size_t i = 0; i < gate.size(); i++) {
    const double x = gate[i], u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    ASSERT_NEAR(silu[i], x / (1 + std::exp(-x)), std::abs(x) * 4e-7);
    ASSERT_NEAR(gelu[i], 0.5 * x * (1 + std::tanh(u)), std::abs(x) * 4e-7);
    ASSERT_NEAR(sigmoid[i], 1 / (1 + std::exp(-x)), 4e-7);
    const double g = std::min(x, 3.0), bounded = std::clamp(x, -3.0, 3.0), shifted = bounded + 1;
    ASSERT_NEAR(clamped[i], g / (1 + std::exp(-1.702 * g)) * shifted, std::abs(g * shifted) * 4e-6 + 1e-7);
    ASSERT_NEAR(plain[i], g / (1 + std::exp(-g)) * bounded, std::abs(g * bounded) * 4e-6 + 1e-7);
  }
}

TEST_F(RowOps, ElementwiseFormulas) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths) {
      const auto a = hard_numbers(n, 4), b = numbers(n, 2, 5);
      std::vector<float> silu, clamped, gated, sum, scaled, capped;
      for (size_t i = 0; i < a.size(); i++) {
        silu.push_back(a[i] / (1 + exp(-a[i])) * b[i]);
        const float g = std::isnan(a[i]) ? a[i] : std::min(a[i], 7.0F), u = std::clamp(b[i], -7.0F, 7.0F);
        clamped.push_back(g / (1 + exp(-(1.702F * g))) * (u + 1));
        gated.push_back(b[i] / (1 + exp(-a[i])));
        sum.push_back(a[i] + b[i]);
        scaled.push_back(a[i] * 0.3F);
        capped.push_back(30.0F * tanh(a[i] / 30.0F));
      }
      std::vector<float> out(a.size() + 1, 7.0F);
      const auto expect = [&](const std::vector<float>& want, const char* what) {
        EXPECT_TRUE(same(want, {out.begin(), out.end() - 1})) << what << " " << name_of(table.isa) << " " << n;
        EXPECT_EQ(out.back(), 7.0F);
      };
      table.rows->silu_mul(a.data(), b.data(), n, out.data());
      expect(silu, "silu");
      table.rows->clamped_swiglu({a.data(), b.data(), 1.702F, 7, 1, n, out.data()});
      expect(clamped, "clamped");
      table.rows->sigmoid_mul(a.data(), b.data(), n, out.data());
      expect(gated, "sigmoid");
      table.rows->add(a.data(), b.data(), n, out.data());
      expect(sum, "add");
      table.rows->scale(a.data(), 0.3F, n, out.data());
      expect(scaled, "scale");
      table.rows->soft_cap(a.data(), 30, n, out.data());
      expect(capped, "soft cap");
      std::memcpy(out.data(), a.data(), a.size() * 4);  // in place
      table.rows->add(out.data(), b.data(), n, out.data());
      expect(sum, "add in place");
    }
}

// In place: all outputs but the first lie on inputs, in another order.
TEST_F(RowOps, CombinesRows) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths)
      for (const auto& [inputs, outputs] : {std::pair{1, 1}, {4, 1}, {5, 4}, {9, 8}}) {
        std::vector<std::vector<float>> rows, want;
        for (int i = 0; i < inputs; i++) rows.push_back(hard_numbers(n, static_cast<unsigned>(i)));
        const auto factors = numbers(inputs * outputs, 1, 20);
        for (int j = 0; j < outputs; j++) {
          auto& row = want.emplace_back();
          for (size_t p = 0; p < static_cast<size_t>(n); p++) {
            const float* f = factors.data() + j * inputs;
            float sum = f[0] * rows[0][p];
            for (size_t i = 1; i < rows.size(); i++) sum = std::fma(f[i], rows[i][p], sum);
            row.push_back(sum);
          }
        }
        std::vector<float> first(static_cast<size_t>(n) + 1, 7.0F);
        std::vector<const float*> x;
        std::vector<float*> out = {first.data()};
        for (auto& row : rows) x.push_back(row.data());
        for (int j = 1; j < outputs; j++) out.push_back(rows[static_cast<size_t>(inputs - j)].data());
        table.rows->combine({x.data(), inputs, out.data(), outputs, factors.data(), n});
        EXPECT_TRUE(same(want[0], {first.begin(), first.end() - 1})) << name_of(table.isa) << " " << n;
        EXPECT_EQ(first.back(), 7.0F);
        for (int j = 1; j < outputs; j++)
          EXPECT_TRUE(same(want[static_cast<size_t>(j)], rows[static_cast<size_t>(inputs - j)]))
              << name_of(table.isa) << " " << n << " " << j;
      }
}

TEST_F(RowOps, SetsOfInstructionsAgree) {
  const auto all = test_tables();
  for (const int n : {16, 1000, 65537}) {
    const auto a = hard_numbers(n, 8), b = numbers(n, 2, 9);
    std::vector<float> want(a.size()), got(a.size());
    const auto compare = [&](const std::function<void(const RowKernels&, float*)>& run, const char* what) {
      run(row_kernels_scalar(), want.data());
      for (const KernelTable& table : all) {
        run(*table.rows, got.data());
        EXPECT_TRUE(same(want, got)) << what << " " << name_of(table.isa) << " " << n;
      }
    };
    compare([&](const RowKernels& k, float* out) { k.silu_mul(a.data(), b.data(), n, out); }, "silu");
    compare([&](const RowKernels& k, float* out) { k.clamped_swiglu({a.data(), a.data(), 1.702F, 7, 1, n, out}); },
            "clamped");
    compare([&](const RowKernels& k, float* out) { k.gelu_tanh_mul(a.data(), b.data(), n, out); }, "gelu");
    compare([&](const RowKernels& k, float* out) { k.sigmoid_mul(a.data(), b.data(), n, out); }, "sigmoid");
    compare([&](const RowKernels& k, float* out) { k.soft_cap(a.data(), 1.0F, n, out); }, "tanh");
  }
}

TEST_F(RowOps, RopeTurnsPairs) {
  for (const KernelTable& table : test_tables())
    for (const int half : {1, 4, 8, 12, 16, 20, 32, 64}) {
      const int heads = 3, stride = 2 * half + 3;
      const auto x = numbers(heads * stride, 1, 10), c = numbers(half, 1, 11), s = numbers(half, 1, 12);
      for (const bool interleaved : {false, true}) {
        auto want = x, got = x;
        for (int h = 0; h < heads; h++)
          for (int i = 0; i < half; i++) {
            const auto low = static_cast<size_t>(h * stride + (interleaved ? 2 * i : i));
            const auto high = interleaved ? low + 1 : low + static_cast<size_t>(half);
            const auto at = static_cast<size_t>(i);
            want[low] = std::fma(x[low], c[at], -(x[high] * s[at]));
            want[high] = std::fma(x[high], c[at], x[low] * s[at]);
          }
        const RopeArgs args = {.x = got.data(),
                               .head_stride = static_cast<size_t>(stride),
                               .heads = heads,
                               .cos = c.data(),
                               .sin = s.data(),
                               .half = half};
        interleaved ? table.rows->rope_interleaved(args) : table.rows->rope_half(args);
        EXPECT_TRUE(same(want, got)) << name_of(table.isa) << " " << half << " " << interleaved;
      }
    }
}

}  // namespace
}  // namespace quire::kernels
