// Routing against the references' equations in double, ties, and rows that are not numbers.
#include "kernels/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace quire::kernels {
namespace {

std::vector<Route> routes(const RouterShape& shape, const std::vector<float>& logits,
                          const std::vector<float>& correction = {}) {
  std::vector<Route> out(static_cast<size_t>(shape.chosen));
  route(shape, logits.data(), correction.empty() ? nullptr : correction.data(), out.data());
  return out;
}

std::vector<int> experts_of(const std::vector<Route>& routes) {
  std::vector<int> experts;
  for (const Route& r : routes) experts.push_back(r.expert);
  return experts;
}

// Places of the greatest, of equal ones the lower first.
std::vector<size_t> best(const std::vector<double>& x, size_t count) {
  std::vector<size_t> places(x.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::sort(places, [&](size_t a, size_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
  places.resize(count);
  return places;
}

// As DeepSeek-V3, Qwen3-MoE and gpt-oss write it down.
std::vector<double> dense_weights(const RouterShape& s, const std::vector<float>& logits,
                                  const std::vector<float>& correction) {
  const auto n = logits.size(), size = n / static_cast<size_t>(s.groups);
  std::vector<double> scores(n);
  double total = 0;
  for (size_t e = 0; e < n; ++e) {
    const auto x = static_cast<double>(logits[e]);
    scores[e] = s.scoring == Scoring::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
    total += scores[e];
  }
  if (s.scoring == Scoring::kSoftmax)
    for (double& score : scores) score /= total;
  std::vector<double> choice = scores;
  if (!correction.empty())
    for (size_t e = 0; e < n; ++e) choice[e] += static_cast<double>(correction[e]);
  std::vector<double> sums;
  for (size_t g = 0; g < n; g += size) {
    const std::vector<double> group(choice.begin() + static_cast<long>(g),
                                    choice.begin() + static_cast<long>(g + size));
    double sum = 0;
    for (size_t place : best(group, static_cast<size_t>(s.group_best))) sum += group[place];
    sums.push_back(sum);
  }
  const auto kept = best(sums, static_cast<size_t>(s.chosen_groups));
  for (size_t e = 0; e < n; ++e)
    if (std::ranges::find(kept, e / size) == kept.end()) choice[e] = -INFINITY;
  std::vector<double> weights(n, 0.0);
  double chosen = 0;
  for (size_t e : best(choice, static_cast<size_t>(s.chosen))) chosen += weights[e] = scores[e];
  for (double& w : weights) w *= static_cast<double>(s.scaling) / (s.renormalise ? chosen : 1);
  return weights;
}

TEST(Routing, FollowsTheReferences) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  const RouterShape shapes[] = {
      {.experts = 128, .chosen = 8},
      {.experts = 32, .chosen = 4, .renormalise = false},
      {.experts = 64, .chosen = 4, .scoring = Scoring::kSigmoid, .scaling = 1.8F},
      {.experts = 8, .chosen = 2, .scoring = Scoring::kSigmoid, .groups = 4, .chosen_groups = 2, .group_best = 2},
      {.experts = 256,
       .chosen = 8,
       .scoring = Scoring::kSigmoid,
       .groups = 8,
       .chosen_groups = 4,
       .group_best = 2,
       .scaling = 2.5F},
      {.experts = 16, .chosen = 3, .groups = 4, .chosen_groups = 2, .renormalise = false, .scaling = 16},
      {.experts = 5, .chosen = 5},
  };
  for (const RouterShape& shape : shapes) {
    SCOPED_TRACE(shape.experts);
    ASSERT_TRUE(check_router_shape(shape));
    for (int round = 0; round < 50; ++round) {
      std::vector<float> logits(static_cast<size_t>(shape.experts)), correction;
      for (float& x : logits) x = normal(random);
      if (shape.scoring == Scoring::kSigmoid)
        for (int e = 0; e < shape.experts; ++e) correction.push_back(normal(random) * 0.05F);
      const auto want = dense_weights(shape, logits, correction);
      std::vector<double> got(want.size(), 0.0);
      const auto all = routes(shape, logits, correction);
      EXPECT_TRUE(std::ranges::is_sorted(experts_of(all)));
      for (const Route& r : all) got[static_cast<size_t>(r.expert)] = static_cast<double>(r.weight);
      for (size_t e = 0; e < want.size(); ++e) ASSERT_NEAR(got[e], want[e], 2e-6 * static_cast<double>(shape.scaling));
    }
  }
}

TEST(Routing, TiesGoToTheLowerExpert) {
  const RouterShape shape{.experts = 6, .chosen = 2};
  EXPECT_EQ(experts_of(routes(shape, {1, 2, 2, 2, 1, 2})), (std::vector{1, 2}));
  EXPECT_EQ(experts_of(routes(shape, {0, 0, 0, 0, 0, 0})), (std::vector{0, 1}));
  EXPECT_EQ(experts_of(routes(shape, {0, 0, 0, 0, 0, 5})), (std::vector{0, 5}));
  const RouterShape groups{.experts = 6, .chosen = 2, .scoring = Scoring::kSigmoid, .groups = 3};
  EXPECT_EQ(experts_of(routes(groups, {1, 1, 1, 1, 1, 1})), (std::vector{0, 1}));
}

// Great scores are all 1 as sigmoids.
TEST(Routing, ScoresThatRoundToTheSameAreChosenByTheirLogits) {
  const RouterShape shape{.experts = 4, .chosen = 1, .scoring = Scoring::kSigmoid, .renormalise = false};
  const auto chosen = routes(shape, {20, 40, 60, 30});
  EXPECT_EQ(experts_of(chosen), std::vector{2});
  EXPECT_EQ(chosen[0].weight, 1);
}

TEST(Routing, ARowThatIsNoNumberGivesNoNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const RouterShape shapes[] = {{.experts = 4, .chosen = 2},
                                {.experts = 4, .chosen = 2, .scoring = Scoring::kSigmoid, .groups = 2}};
  for (const RouterShape& shape : shapes) {
    for (const std::vector<float>& logits : {std::vector{0.F, kNan, 1.F, 2.F}, {kNan, kNan, kNan, kNan}}) {
      const auto all = routes(shape, logits);
      EXPECT_EQ(experts_of(all), (std::vector{0, 1}));
      for (const Route& r : all) EXPECT_TRUE(std::isnan(r.weight));
    }
    for (const std::vector<float>& logits :
         {std::vector{kInf, 0.F, kInf, 1.F}, {-kInf, -kInf, -kInf, -kInf}, {kInf, kInf, kInf, -kInf}}) {
      const auto all = routes(shape, logits);
      EXPECT_LT(all[0].expert, all[1].expert);
      EXPECT_LT(all[1].expert, 4);
    }
  }
}

TEST(Routing, RefusesShapesThatCannotBe) {
  const RouterShape good{.experts = 8, .chosen = 2, .groups = 4, .chosen_groups = 2, .group_best = 2};
  EXPECT_TRUE(check_router_shape(good));
  const auto refused = [&](auto change, const char* param) {
    RouterShape shape = good;
    change(shape);
    const auto result = check_router_shape(shape);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().param, param);
  };
  refused([](RouterShape& s) { s.experts = 0; }, "num_experts");
  refused([](RouterShape& s) { s.experts = kMostExperts + 8; }, "num_experts");
  refused([](RouterShape& s) { s.groups = 3; }, "n_group");
  refused([](RouterShape& s) { s.chosen_groups = 5; }, "topk_group");
  refused([](RouterShape& s) { s.group_best = 3; }, "n_group");
  refused([](RouterShape& s) { s.chosen = 5; }, "num_experts_per_tok");
  refused([](RouterShape& s) { s.chosen = 0; }, "num_experts_per_tok");
  for (float scaling : {0.0F, -1.0F, INFINITY, NAN})
    refused([&](RouterShape& s) { s.scaling = scaling; }, "routed_scaling_factor");
}

}  // namespace
}  // namespace quire::kernels
