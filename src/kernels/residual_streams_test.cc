#include "kernels/residual_streams.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/test_numbers.h"

namespace quire::kernels {
namespace {

struct Factors {
  std::vector<double> pre, post;
  std::vector<std::vector<double>> c;  // [from][to]
};

// The equations in double.
Factors in_double(const StreamShape& s, const std::vector<float>& m, const std::vector<float>& scale,
                  const std::vector<float>& bias) {
  const auto n = static_cast<size_t>(s.count);
  const auto at = [&](size_t i, size_t part) {
    return static_cast<double>(m[i]) * static_cast<double>(scale[part]) + static_cast<double>(bias[i]);
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto eps = static_cast<double>(s.epsilon);
  Factors f{{}, {}, std::vector(n, std::vector<double>(n))};
  for (size_t i = 0; i < n; i++) {
    f.pre.push_back(sigmoid(at(i, 0)) + eps);
    f.post.push_back(2 * sigmoid(at(n + i, 1)));
    double sum = 0;
    for (size_t j = 0; j < n; j++) sum += std::exp(at(2 * n + i * n + j, 2));
    for (size_t j = 0; j < n; j++) f.c[i][j] = std::exp(at(2 * n + i * n + j, 2)) / sum + eps;
  }
  // Turn 0, 2, ...: columns; 1, 3, ...: rows.
  for (int turn = 0; turn < 2 * s.iterations - 1; turn++)
    for (size_t a = 0; a < n; a++) {
      double sum = eps;
      for (size_t b = 0; b < n; b++) sum += turn % 2 == 0 ? f.c[b][a] : f.c[a][b];
      for (size_t b = 0; b < n; b++) (turn % 2 == 0 ? f.c[b][a] : f.c[a][b]) /= sum;
    }
  return f;
}

TEST(ResidualStreams, FactorsAreThoseOfTheEquations) {
  for (const int count : {2, 4, 8})
    for (const int iterations : {1, 2, 20}) {
      const StreamShape shape{.count = count, .iterations = iterations, .epsilon = 1e-3F};
      const auto n = static_cast<size_t>(count), all = static_cast<size_t>(shape.scores());
      const auto scores = test_numbers(all, 1), bias = test_numbers(all, 2), scale = test_numbers(3, 3);
      const Factors want = in_double(shape, scores, scale, bias);
      std::vector<float> got = scores;
      stream_factors(shape, got.data(), scale.data(), bias.data(), got.data());
      for (size_t i = 0; i < n; i++) {
        EXPECT_NEAR(got[i], want.pre[i], 1e-6);
        EXPECT_NEAR(got[n + i * (n + 1) + n], want.post[i], 1e-6);
        for (size_t from = 0; from < n; from++)
          EXPECT_NEAR(got[n + i * (n + 1) + from], want.c[from][i], 2e-6) << count << " " << iterations;
      }
    }
}

TEST(ResidualStreams, WhatIsNoNumberStaysSo) {
  const StreamShape shape{.count = 4, .iterations = 20, .epsilon = 1e-6F};
  const auto all = static_cast<size_t>(shape.scores());
  const std::vector<float> scale = {1, 1, 1}, bias(all);
  for (const size_t at : {size_t{1}, size_t{6}, size_t{13}}) {
    std::vector<float> scores = test_numbers(all, 1);
    scores[at] = std::numeric_limits<float>::quiet_NaN();
    stream_factors(shape, scores.data(), scale.data(), bias.data(), scores.data());
    int numbers = 0;
    for (const float factor : scores) numbers += std::isnan(factor) ? 0 : 1;
    EXPECT_EQ(numbers, at < 8 ? 23 : 8) << at;  // one of those between the streams reaches all of them
  }
}

TEST(ResidualStreams, ImpossibleShapesAreRefused) {
  EXPECT_TRUE(check_stream_shape({4, 20, 1e-6F}));
  for (const StreamShape& shape : {StreamShape{1, 20, 0}, {9, 20, 0}, {4, 0, 0}, {4, 101, 0}, {4, 20, -1}, {4, 20, 1}})
    EXPECT_FALSE(check_stream_shape(shape));
  EXPECT_EQ(check_stream_shape({4, 20, std::numeric_limits<float>::quiet_NaN()}).error().param, "epsilon");
}

}  // namespace
}  // namespace quire::kernels
