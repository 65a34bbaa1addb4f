// Products of experts and their mixtures, bit for bit what an oracle gives that goes one number after the other.
#include "kernels/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "kernels/gemm_oracle.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

using oracle::Arithmetic;
using weights::WeightFormat;

struct Case {
  WeightFormat format;
  WeightTarget target;
  Arithmetic arithmetic;
};
constexpr Case kCases[] = {{WeightFormat::kBF16, WeightTarget::kF32, Arithmetic::kF32},
                           {WeightFormat::kBF16, WeightTarget::kBF16, Arithmetic::kBlocks},
                           {WeightFormat::kQ4_0, WeightTarget::kNative, Arithmetic::kIntegers},
                           {WeightFormat::kMXFP4, WeightTarget::kNative, Arithmetic::kIntegers}};

constexpr int kSliceInputs = 64;

// A matrix whose slices are known by themselves.
struct Expert {
  std::vector<oracle::Matrix> slices;
  std::vector<std::byte> file;
  std::vector<float> bias;
  PackedMatrix packed;
};

class Experts : public testing::Test {
 protected:
  Experts() { set_flush_denormals(); }

  Expert random_expert(const Case& c, int outputs, int slices) {
    Expert e;
    for (int s = 0; s < slices; s++) e.slices.push_back(oracle::random_matrix(c.format, outputs, kSliceInputs, rng));
    for (size_t n = 0; n < static_cast<size_t>(outputs); n++) {
      for (const oracle::Matrix& slice : e.slices) {
        const auto row = static_cast<std::ptrdiff_t>(slice.file.size() / static_cast<size_t>(outputs));
        const auto first = slice.file.begin() + static_cast<std::ptrdiff_t>(n) * row;
        e.file.insert(e.file.end(), first, first + row);
      }
      e.bias.push_back(static_cast<float>(rng() % 1000) * 0.003F - 1.5F);
    }
    const weights::Tensor tensor{
        .name = "w", .format = c.format, .shape = {outputs, int64_t{slices} * kSliceInputs}, .data = e.file};
    const PackSource source{&tensor};
    auto packed = pack({&source, 1}, c.target, slices, allocator, pool);
    EXPECT_TRUE(packed) << packed.error().message;
    e.packed = std::move(*packed);
    return e;
  }

  // Routes of `rows` rows to `chosen` of `experts`, in ascending order.
  std::vector<Route> random_routes(int rows, int chosen, int experts) {
    std::vector<Route> routes;
    std::vector<int> all(static_cast<size_t>(experts));
    for (int r = 0; r < rows; r++) {
      for (int e = 0; e < experts; e++) all[static_cast<size_t>(e)] = e;
      std::ranges::shuffle(all, rng);
      std::sort(all.begin(), all.begin() + chosen);
      for (int i = 0; i < chosen; i++)
        routes.push_back({all[static_cast<size_t>(i)], static_cast<float>(rng() % 1000) * 0.001F});
    }
    return routes;
  }

  Allocator allocator;
  ThreadPool pool{2};
  std::mt19937 rng{11};
};

// Inputs [begin, begin + kSliceInputs) of a row.
std::vector<float> slice_of(const std::vector<float>& x, int row, int inputs, int slice) {
  const auto first = x.begin() + int64_t{row} * inputs + slice * kSliceInputs;
  return {first, first + kSliceInputs};
}

TEST(ExpertPairs, AreOrderedByExpertAndThenByRow) {
  const std::vector<Route> routes = {{1, 0.1F}, {4, 0.2F}, {0, 0.3F}, {4, 0.4F}, {1, 0.5F}, {2, 0.6F}};
  ExpertPairs pairs;
  pairs.assign(routes, 2, 6);
  const std::vector<std::vector<int>> groups = {{0, 0, 1}, {1, 1, 2}, {2, 3, 1}, {4, 4, 2}};
  ASSERT_EQ(pairs.groups().size(), groups.size());
  for (size_t g = 0; g < groups.size(); g++) {
    const ExpertGroup& group = pairs.groups()[g];
    EXPECT_EQ((std::vector{group.expert, group.first, group.count}), groups[g]);
  }
  EXPECT_EQ(std::vector(pairs.rows(), pairs.rows() + pairs.count()), (std::vector<int32_t>{1, 0, 2, 2, 0, 1}));
  EXPECT_EQ(std::vector(pairs.weights(), pairs.weights() + pairs.count()),
            (std::vector<float>{0.3F, 0.1F, 0.5F, 0.6F, 0.2F, 0.4F}));
}

// A layer's last matrices, and rows with their choices.
struct Layer {
  Case form;
  int slices = 1;
  std::vector<Expert> experts;
  bool biased = false;
  int rows = 0, chosen = 0;
  std::vector<float> x, addend, residual;  // as many rows at least
  std::vector<Route> routes;

  int inputs() const { return slices * kSliceInputs; }
  int outputs() const { return experts.front().packed.outputs(); }
};

// Rule 8 for one row, before what is added.
std::vector<float> mixed_row(const Layer& layer, int row) {
  const auto n = static_cast<size_t>(layer.outputs());
  std::vector<std::vector<float>> sums(static_cast<size_t>(layer.slices), std::vector<float>(n));
  const auto first = static_cast<size_t>(row) * static_cast<size_t>(layer.chosen);
  const auto routes = std::span(layer.routes).subspan(first, static_cast<size_t>(layer.chosen));
  const auto expert_of = [&](const Route& route) -> const Expert& {
    return layer.experts[static_cast<size_t>(route.expert)];
  };
  for (const Route& route : routes)
    for (size_t i = 0; layer.biased && i < n; i++) sums[0][i] = sums[0][i] + route.weight * expert_of(route).bias[i];
  for (const Route& route : routes)
    for (size_t s = 0; s < sums.size(); s++) {
      const auto part = slice_of(layer.x, row, layer.inputs(), static_cast<int>(s));
      const auto sum = oracle::product(expert_of(route).slices[s], part, 1, layer.form.arithmetic, 1);
      for (size_t i = 0; i < n; i++) sums[s][i] = std::fma(route.weight, sum[i], sums[s][i]);
    }
  for (size_t step = 1; step < sums.size(); step *= 2)
    for (size_t s = 0; s < sums.size(); s += 2 * step)
      for (size_t i = 0; i < n; i++) sums[s][i] += sums[s + step][i];
  return sums[0];
}

std::vector<float> oracle_mixture(const Layer& layer) {
  std::vector<float> all;
  for (int r = 0; r < layer.rows; r++)
    for (const float sum : mixed_row(layer, r)) {
      const size_t at = all.size();
      all.push_back(layer.residual[at] + std::fma(1.0F, layer.addend[at], sum));
    }
  return all;
}

std::vector<float> mixture(const KernelTable& table, const Layer& layer, ThreadPool& pool) {
  Allocator allocator;
  const auto count = static_cast<int>(layer.experts.size());
  ExpertPairs pairs;
  pairs.assign(layer.routes, layer.chosen, count);
  ExpertActivations activations;
  EXPECT_TRUE(activations.reserve(pairs.count(), count, layer.inputs(), allocator));
  activations.reshape(table, activation_kind(layer.experts[0].packed.layout()), pairs.groups(), layer.inputs());
  MixWorkspace workspace;
  EXPECT_TRUE(workspace.reserve(layer.rows, layer.slices, pool.size(), allocator));
  std::vector<ExpertTerm> terms;
  for (size_t g = 0; g < pairs.groups().size(); g++) {
    const ExpertGroup& group = pairs.groups()[g];
    const int32_t* rows = pairs.rows() + group.first;
    for (int i = 0; i < group.count; i++)
      activations.group(g).set_row(table, layer.x.data() + int64_t{rows[i]} * layer.inputs(), i);
    const Expert& expert = layer.experts[static_cast<size_t>(group.expert)];
    terms.push_back({&expert.packed, &activations.group(g), rows, pairs.weights() + group.first,
                     layer.biased ? expert.bias.data() : nullptr});
  }
  const auto n = static_cast<size_t>(layer.outputs());
  std::vector<float> out(layer.residual.begin(), layer.residual.begin() + int64_t{layer.rows} * layer.outputs());
  GemmOutput output{.out = out.data(), .stride = n, .addend = layer.addend.data(), .addend_stride = n};
  output.residual = out.data(), output.residual_stride = n;
  mix_experts(table, terms, layer.rows, output, workspace, pool);
  return out;
}

TEST_F(Experts, MixturesHaveTheOraclesBits) {
  constexpr int kExperts = 5, kMost = 37;
  for (const Case& c : kCases)
    for (const int slices : {1, 2, 4}) {
      Layer layer;
      layer.form = c, layer.slices = slices;
      const int outputs = slices == 2 ? 75 : 128;
      for (int e = 0; e < kExperts; e++) layer.experts.push_back(random_expert(c, outputs, slices));
      layer.x = oracle::random_rows(kMost, layer.inputs(), rng);
      layer.addend = oracle::random_rows(kMost, outputs, rng);
      layer.residual = oracle::random_rows(kMost, outputs, rng);
      for (const int rows : {1, 3, kMost})
        for (const bool biased : {false, true}) {
          layer.rows = rows, layer.chosen = rows == 3 ? 1 : 3, layer.biased = biased;
          layer.routes = random_routes(rows, layer.chosen, kExperts);
          const auto want = oracle_mixture(layer);
          for (const KernelTable& table : test_tables()) {
            const auto got = mixture(table, layer, pool);
            ASSERT_EQ(oracle::difference(want.data(), got.data(), want.size(), outputs), "")
                << name_of(table.isa) << " " << weights::format_info(c.format).name << " slices " << slices << " rows "
                << rows << " biased " << biased;
          }
        }
    }
}

// gemm() of several experts is gemm() of each.
TEST_F(Experts, AreMultipliedAsMatricesAlone) {
  constexpr int kExperts = 4, kRows = 21, kOutputs = 75;
  for (const Case& c : kCases) {
    std::vector<Expert> experts;
    for (int e = 0; e < kExperts; e++) experts.push_back(random_expert(c, kOutputs, 1));
    const auto x = oracle::random_rows(kRows, kSliceInputs, rng);
    const auto routes = random_routes(kRows, 2, kExperts);
    ExpertPairs pairs;
    pairs.assign(routes, 2, kExperts);
    for (const KernelTable& table : test_tables()) {
      ExpertActivations activations;
      ASSERT_TRUE(activations.reserve(pairs.count(), kExperts, kSliceInputs, allocator));
      activations.reshape(table, activation_kind(experts[0].packed.layout()), pairs.groups(), kSliceInputs);
      std::vector<float> got(static_cast<size_t>(pairs.count()) * kOutputs);
      std::vector<ExpertProduct> products;
      for (size_t g = 0; g < pairs.groups().size(); g++) {
        const ExpertGroup& group = pairs.groups()[g];
        for (int i = 0; i < group.count; i++)
          activations.group(g).set_row(table, x.data() + pairs.rows()[group.first + i] * kSliceInputs, i);
        const Expert& expert = experts[static_cast<size_t>(group.expert)];
        products.push_back({&expert.packed,
                            &activations.group(g),
                            {.out = got.data() + static_cast<size_t>(group.first) * kOutputs,
                             .stride = kOutputs,
                             .bias = expert.bias.data()}});
      }
      gemm(table, products, pool);
      for (const ExpertGroup& group : pairs.groups())
        for (int p = group.first; p < group.first + group.count; p++) {
          const Expert& expert = experts[static_cast<size_t>(group.expert)];
          auto want =
              oracle::product(expert.slices[0], slice_of(x, pairs.rows()[p], kSliceInputs, 0), 1, c.arithmetic, 1);
          for (size_t i = 0; i < want.size(); i++) want[i] += expert.bias[i];
          ASSERT_EQ(oracle::difference(want.data(), got.data() + static_cast<size_t>(p) * kOutputs, kOutputs, kOutputs),
                    "")
              << name_of(table.isa) << " " << weights::format_info(c.format).name << " pair " << p;
        }
    }
  }
}

}  // namespace
}  // namespace quire::kernels
