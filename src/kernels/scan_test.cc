#include "kernels/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/math.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits with many ties.
std::vector<float> logits(int n, unsigned seed, bool ties) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = ties ? std::round(normal(rng)) : normal(rng);
  return x;
}

class Scan : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }
};

const int kLengths[] = {1, 2, 15, 16, 17, 100, 1023, 1024, 1025, 5000, 49152, 49153};

TEST_F(Scan, ArgmaxTakesTheLowestOfEquals) {
  for (const KernelTable& table : test_tables()) {
    for (const int n : kLengths)
      for (unsigned seed = 0; seed < 5; seed++) {
        const auto x = logits(n, seed, true);
        const ScoredId got = table.scan->argmax(x.data(), n);
        const auto want = std::max_element(x.begin(), x.end());  // the first
        EXPECT_EQ(got.id, want - x.begin());
        EXPECT_EQ(got.value, *want);
      }
    const std::vector<float> none(40, -kInf), mixed = {kNan, -kInf, 3, kNan, 3, kNan};
    EXPECT_EQ(table.scan->argmax(none.data(), 40).id, 0);
    EXPECT_EQ(table.scan->argmax(none.data(), 40).value, -kInf);
    EXPECT_EQ(table.scan->argmax(mixed.data(), 6).id, 2);
    EXPECT_EQ(table.scan->argmax(mixed.data(), 1).value, -kInf);
  }
}

TEST_F(Scan, NanIsSeenWherever) {
  for (const KernelTable& table : test_tables())
    for (const int n : {1, 16, 17, 40}) {
      auto x = logits(n, 1, false);
      x[0] = kInf;
      EXPECT_FALSE(table.scan->has_nan(x.data(), n));
      for (size_t i = 0; i < x.size(); i++) {
        auto y = x;
        y[i] = kNan;
        EXPECT_TRUE(table.scan->has_nan(y.data(), n));
      }
    }
}

TEST_F(Scan, RankAndNextAbove) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths) {
      const auto x = logits(n, 3, true);
      for (const float t : {-kInf, -3.0F, 0.0F, 7.0F, kInf}) {
        EXPECT_EQ(table.scan->count_above(x.data(), n, t),
                  std::count_if(x.begin(), x.end(), [t](float v) { return v > t; }));
        int found = 0;
        for (int i = table.scan->next_above(x.data(), 0, n, t); i < n;
             i = table.scan->next_above(x.data(), i + 1, n, t)) {
          ASSERT_GT(x[static_cast<size_t>(i)], t);
          found++;
        }
        EXPECT_EQ(found, table.scan->count_above(x.data(), n, t));
      }
    }
}

// Numerics rule 5, written once more.
float log_sum_exp_oracle(const std::vector<float>& x) {
  float top = -kInf, total = 0;
  for (size_t begin = 0; begin < x.size(); begin += 1024) {
    const size_t end = std::min(begin + 1024, x.size());
    float m = -kInf, lanes[16] = {};
    for (size_t i = begin; i < end; i++) m = std::max(m, x[i]);
    if (m == -kInf) continue;
    for (size_t i = begin; i < end; i++) lanes[i % 16] += exp(x[i] - m);
    for (int step = 8; step > 0; step /= 2)
      for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    const float both = std::max(top, m);
    total = top == -kInf ? lanes[0] : std::fma(lanes[0], exp(m - both), total * exp(top - both));
    top = both;
  }
  return top + log(total);
}

TEST_F(Scan, LogSumExpFollowsTheRule) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths) {
      auto x = logits(n, 4, false);
      double exact = 0;
      for (const float v : x) exact += std::exp(static_cast<double>(v));
      EXPECT_NEAR(log_sum_exp(table, x), std::log(exact), 3e-6);
      for (size_t i = 0; i < x.size(); i += 7) x[i] = -kInf;  // banned
      if (n > 2500) std::fill(x.begin() + 1024, x.begin() + 2048, -kInf);
      const float got = log_sum_exp(table, x), want = log_sum_exp_oracle(x);
      EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0) << name_of(table.isa) << " " << n;
    }
}

TEST_F(Scan, PartsMergeToTheWhole) {
  const auto x = logits(10 * 1024, 5, false);
  for (const KernelTable& table : test_tables()) {
    std::vector<MaxSum> blocks(10);
    table.scan->max_sum_blocks(x.data(), 4 * 1024, blocks.data());
    table.scan->max_sum_blocks(x.data() + 4 * 1024, 6 * 1024, blocks.data() + 4);
    MaxSum total = {-kInf, 0};
    for (const MaxSum& b : blocks) total = merge(total, b);
    const float want = log_sum_exp(table, x), got = total.max + log(total.sum);
    EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0);
  }
}

TEST_F(Scan, TopNIsTheHeadOfTheSortedRow) {
  for (const KernelTable& table : test_tables())
    for (const int n : kLengths)
      for (const bool ties : {false, true}) {
        auto x = logits(n, 6, ties);
        if (n > 20) x[3] = kNan, x[19] = -kInf;
        std::vector<int32_t> ids(x.size());
        std::iota(ids.begin(), ids.end(), 0);
        const auto key = [&](int32_t i) {
          return std::isnan(x[static_cast<size_t>(i)]) ? -kInf : x[static_cast<size_t>(i)];
        };
        std::sort(ids.begin(), ids.end(),
                  [&](int32_t a, int32_t b) { return key(a) > key(b) || (key(a) == key(b) && a < b); });
        for (const int count : {0, 1, 5, 20, 200, n}) {
          if (count > n || count > 5000) continue;
          std::vector<ScoredId> best(static_cast<size_t>(count));
          top_n(table, x, best);
          for (size_t i = 0; i < best.size(); i++) {
            ASSERT_EQ(best[i].id, ids[i]) << n << " " << count << " " << i;
            ASSERT_EQ(best[i].value, key(ids[i]));
          }
        }
      }
}

}  // namespace
}  // namespace quire::kernels
