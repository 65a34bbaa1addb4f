// The indexer whose pools are single tokens: their keys turn by a rope, and wait for nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/pooled_index.h"
#include "kernels/test_numbers.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

constexpr int kBlockTokens = 16;
constexpr int kTokens = 150;
constexpr PooledIndexShape kShape{.pool = 1, .heads = 3, .dim = 10, .top_k = 24, .dtype = DType::kF32};
constexpr size_t kStride = 10 + 3 + 1;
constexpr size_t kQueries = 3 * 10;

using Selected = std::vector<std::vector<int32_t>>;  // by token

// One sequence in scattered blocks. What is not written is NaN.
class World {
 public:
  World(const KernelTable& table, bool interleaved)
      : table_(table), parameters_{.theta = 100, .rotary_dim = 6, .interleaved = interleaved} {
    for (int b = 0; b <= kTokens / kBlockTokens; b++) blocks_.push_back(1 + b * 2);
    memory_.assign(32 * 1024, std::byte{0xff});
    keys_ = {memory_.data(), 1024, pooled_key_bytes(kShape) + 8, kBlockTokens};
    ThreadPool pool(1);
    rope_ = *RopeTable::make(parameters_, kTokens, allocator_);
    rope_.prepare(kTokens, pool);
    EXPECT_TRUE(workspace_.reserve(kShape, 3, allocator_));
  }

  // Tokens [first, first + count) as one step; adds what each reads.
  void step(int first, int count, Selected& selected, int threads = 1) {
    std::vector<int64_t> slots;
    for (int p = first; p < first + count; p++)
      slots.push_back(int64_t{blocks_[static_cast<size_t>(p / kBlockTokens)]} * kBlockTokens + p % kBlockTokens);
    const float* row = inputs_.data() + static_cast<size_t>(first) * kStride;
    const PooledIndexArgs args = {.shape = kShape,
                                  .norm_weight = weight_.data(),
                                  .norm_bias = bias_.data(),
                                  .norm_epsilon = 1e-6F,
                                  .rope = &rope_,
                                  .key = row,
                                  .weight = row + kShape.dim,
                                  .stride = kStride,
                                  .q = queries_.data() + static_cast<size_t>(first) * kQueries,
                                  .q_stride = kQueries,
                                  .keys = keys_,
                                  .key_slots = slots};
    ThreadPool pool(threads);
    const AttentionSequence sequence{blocks_, 0, count, first};
    pool_keys(table_, args, {&sequence, 1}, workspace_, pool);
    TokenSelection selection = *TokenSelection::make(count, kShape.most_selected(), allocator_);
    select_tokens(table_, args, {&sequence, 1}, workspace_, pool, selection);
    for (int i = 0; i < count; i++) selected.emplace_back(selection.row(i).begin(), selection.row(i).end());
  }

  std::vector<float> stored(int token) const {
    std::vector<float> key(kShape.dim);
    read_numbers(sequence_row(keys_, blocks_.data(), token), kShape.dim, kShape.dtype, key.data());
    return key;
  }

  // The definition, in double.
  std::vector<double> key(int token) const {
    const int n = kShape.dim;
    double mean = 0, variance = 1e-6;
    for (int c = 0; c < n; c++) mean += input(token, c) / n;
    for (int c = 0; c < n; c++) variance += std::pow(input(token, c) - mean, 2) / n;
    std::vector<double> key;
    for (int c = 0; c < n; c++) {
      const auto at = static_cast<size_t>(c);
      key.push_back((input(token, c) - mean) / std::sqrt(variance) * static_cast<double>(weight_[at]) +
                    static_cast<double>(bias_[at]));
    }
    for (size_t i = 0; i < 3; i++) {
      const size_t a = parameters_.interleaved ? 2 * i : i, b = parameters_.interleaved ? 2 * i + 1 : i + 3;
      const double angle = token * std::pow(100.0, -static_cast<double>(i) / 3);
      const double x = key[a], y = key[b];
      key[a] = x * std::cos(angle) - y * std::sin(angle);
      key[b] = y * std::cos(angle) + x * std::sin(angle);
    }
    return key;
  }

  std::vector<int32_t> reads(int p) const {
    std::vector<std::pair<double, int32_t>> order;
    for (int t = 0; t <= p; t++) {
      const std::vector<double> k = key(t);
      double score = 0;
      for (int h = 0; h < kShape.heads; h++) {
        double dot = 0;
        for (int i = 0; i < kShape.dim; i++)
          dot += static_cast<double>(queries_[static_cast<size_t>(p) * kQueries + static_cast<size_t>(h * 10 + i)]) *
                 k[static_cast<size_t>(i)];
        score += input(p, kShape.dim + h) * std::max(dot, 0.0);
      }
      order.emplace_back(-score, t);
    }
    std::ranges::sort(order);
    order.resize(std::min<size_t>(order.size(), kShape.top_k));
    std::vector<int32_t> tokens;
    for (const auto& [score, t] : order) tokens.push_back(t);
    std::ranges::sort(tokens);
    return tokens;
  }

 private:
  double input(int token, int column) const {
    return static_cast<double>(inputs_[static_cast<size_t>(token) * kStride + static_cast<size_t>(column)]);
  }

  const KernelTable& table_;
  RopeParameters parameters_;
  Allocator allocator_;
  IndexWorkspace workspace_;
  RopeTable rope_;
  std::vector<float> inputs_ = test_numbers(kTokens * kStride, 1), queries_ = test_numbers(kTokens * kQueries, 2),
                     weight_ = test_numbers(10, 91), bias_ = test_numbers(10, 92);
  std::vector<int32_t> blocks_;
  std::vector<std::byte> memory_;
  RowView keys_;
};

TEST(TokenIndex, IsTheDefinition) {
  for (const KernelTable& table : test_tables())
    for (const bool interleaved : {false, true}) {
      World world(table, interleaved);
      Selected got;
      world.step(0, kTokens, got);
      for (int p = 0; p < kTokens; p++) {
        ASSERT_EQ(got[static_cast<size_t>(p)], world.reads(p)) << p;
        for (size_t c = 0; c < 10; c++) ASSERT_NEAR(world.stored(p)[c], world.key(p)[c], 4e-6);
      }
    }
}

TEST(TokenIndex, AnySplitGivesTheSame) {
  const auto tables = test_tables();
  World world(tables.front(), false);
  Selected want;
  world.step(0, kTokens, want);
  for (const KernelTable& table : tables)
    for (const int size : {1, 3, 64, kTokens})
      for (const int threads : {1, 2, 3}) {
        World again(table, false);
        Selected got;
        for (int first = 0; first < kTokens; first += size)
          again.step(first, std::min(size, kTokens - first), got, threads);
        ASSERT_EQ(got, want) << size << " " << threads;
        for (int p = 0; p < kTokens; p++) {
          const std::vector<float> a = again.stored(p), b = world.stored(p);
          ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << p;
        }
      }
}

}  // namespace
}  // namespace quire::kernels
