#include "kernels/pooled_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/test_numbers.h"

namespace quire::kernels {
namespace {

constexpr int kBlockTokens = 16;
constexpr int kTokens = 203;
constexpr PooledIndexShape kShape{.pool = 4, .heads = 3, .dim = 10, .top_k = 24, .dtype = DType::kF32};

using Selected = std::vector<std::vector<int32_t>>;  // by token

// One sequence: its inputs, its blocks of pooled keys, its block of the ring. What is not written is NaN.
class World {
 public:
  World(unsigned seed, int first_block, int ring_block, int capacity, std::vector<std::byte>& memory)
      : inputs_(test_numbers(kTokens * kStride, seed)),
        queries_(test_numbers(kTokens * kQueries, seed + 1)),
        ring_block_(ring_block),
        capacity_(capacity) {
    for (int b = 0; b <= kTokens / kBlockTokens; b++) blocks_.push_back(first_block + b * 2);
    keys_ = {memory.data(), 512, pooled_key_bytes(kShape), kBlockTokens / kShape.pool};
    ring_ = {memory.data() + 64 * 512, 1024, open_pool_row_bytes(kShape), capacity};
  }

  static std::vector<std::byte> memory() { return std::vector<std::byte>(64 * 512 + 16 * 1024, std::byte{0xff}); }

  PooledIndexArgs args(int first, int count) {
    key_slots_.clear();
    ring_slots_.clear();
    for (int p = first; p < first + count; p++) {
      const int block = blocks_[static_cast<size_t>(p / kBlockTokens)];
      key_slots_.push_back((p + 1) % kShape.pool == 0 ? (block * kBlockTokens + p % kBlockTokens) / kShape.pool : -1);
      ring_slots_.push_back(int64_t{ring_block_} * capacity_ + p % capacity_);
    }
    const float* row = inputs_.data() + static_cast<size_t>(first) * kStride;
    return {.shape = kShape,
            .norm_weight = weight_.data(),
            .norm_bias = bias_.data(),
            .norm_epsilon = 1e-6F,
            .position_bias = by_place_.data(),
            .key = row,
            .gate = row + kShape.dim,
            .weight = row + 2 * kShape.dim,
            .stride = kStride,
            .q = queries_.data() + static_cast<size_t>(first) * kQueries,
            .q_stride = kQueries,
            .keys = keys_,
            .key_slots = key_slots_,
            .ring = ring_,
            .ring_slots = ring_slots_};
  }

  // Tokens [first, first + count) as one step; adds what each reads.
  void step(int first, int count, Selected& selected, int threads = 1) {
    ThreadPool pool(threads);
    const PooledIndexArgs a = args(first, count);
    const AttentionSequence sequence{blocks_, 0, count, first};
    pool_keys(a, {&sequence, 1}, pool);
    Allocator allocator;
    TokenSelection selection = *TokenSelection::make(count, kShape.most_selected(), allocator);
    select_tokens(a, {&sequence, 1}, pool, selection);
    for (int i = 0; i < count; i++) {
      const auto row = selection.row(i);
      selected.emplace_back(row.begin(), row.end());
    }
  }

  // The definition, in double.
  std::vector<int32_t> reads(int p) const {
    std::vector<std::pair<double, int>> order;
    for (int j = 0; j < (p + 1) / kShape.pool; j++) order.emplace_back(-score(p, j), j);
    std::ranges::sort(order);
    order.resize(std::min<size_t>(order.size(), kShape.top_k / kShape.pool));
    std::vector<int32_t> tokens;
    for (const auto& [score, j] : order)
      for (int i = 0; i < kShape.pool; i++) tokens.push_back(j * kShape.pool + i);
    for (int t = (p + 1) / kShape.pool * kShape.pool; t <= p; t++) tokens.push_back(t);
    std::ranges::sort(tokens);
    return tokens;
  }

  // Infinite beyond the numbers of fp32.
  double score(int p, int j) const {
    const std::vector<double> key = pooled(j);
    double score = 0;
    for (int h = 0; h < kShape.heads; h++) {
      double dot = 0;
      for (int i = 0; i < kShape.dim; i++) dot += query(p, h * kShape.dim + i) * key[static_cast<size_t>(i)];
      score += input(p, 2 * kShape.dim + h) / std::sqrt(30.0) * std::max(dot, 0.0);
    }
    const bool finite = std::abs(score) <= static_cast<double>(std::numeric_limits<float>::max());
    return finite ? score : std::copysign(HUGE_VAL, score);
  }

  std::vector<double> pooled(int j) const {
    std::vector<double> sum(kShape.dim), total(kShape.dim);
    for (int i = 0; i < kShape.pool; i++) {
      const int t = j * kShape.pool + i;
      double mean = 0, variance = 0;
      for (int c = 0; c < kShape.dim; c++) mean += input(t, c) / kShape.dim;
      for (int c = 0; c < kShape.dim; c++) variance += std::pow(input(t, c) - mean, 2) / kShape.dim;
      for (int c = 0; c < kShape.dim; c++) {
        const auto at = static_cast<size_t>(c);
        const double a = std::exp(input(t, kShape.dim + c) +
                                  static_cast<double>(by_place_[static_cast<size_t>(i * kShape.dim + c)]));
        total[at] += a;
        sum[at] += a * ((input(t, c) - mean) / std::sqrt(variance + 1e-6) * static_cast<double>(weight_[at]) +
                        static_cast<double>(bias_[at]));
      }
    }
    for (size_t c = 0; c < sum.size(); c++) sum[c] /= total[c];
    return sum;
  }

  float* key(int token) { return inputs_.data() + static_cast<size_t>(token) * kStride; }
  float* weight(int token) { return key(token) + 2 * kShape.dim; }
  float* query(int token) { return queries_.data() + static_cast<size_t>(token) * kQueries; }

  std::vector<float> stored(int j) const {
    std::vector<float> key(kShape.dim);
    read_numbers(sequence_row(keys_, blocks_.data(), j), kShape.dim, kShape.dtype, key.data());
    return key;
  }

 private:
  static constexpr size_t kStride = 2 * 10 + 3 + 1;
  static constexpr size_t kQueries = 3 * 10;

  double input(int token, int column) const {
    return static_cast<double>(inputs_[static_cast<size_t>(token) * kStride + static_cast<size_t>(column)]);
  }
  double query(int token, int column) const {
    return static_cast<double>(queries_[static_cast<size_t>(token) * kQueries + static_cast<size_t>(column)]);
  }

  std::vector<float> inputs_, queries_;
  std::vector<float> weight_ = test_numbers(10, 91), bias_ = test_numbers(10, 92), by_place_ = test_numbers(40, 93);
  std::vector<int32_t> blocks_;
  int ring_block_, capacity_;
  RowView keys_, ring_;
  std::vector<int64_t> key_slots_, ring_slots_;
};

TEST(PooledIndex, IsTheDefinition) {
  auto memory = World::memory();
  World world(1, 1, 0, kShape.pool, memory);
  Selected got;
  world.step(0, kTokens, got);
  for (int p = 0; p < kTokens; p++) ASSERT_EQ(got[static_cast<size_t>(p)], world.reads(p)) << p;
  for (int j = 0; j < kTokens / kShape.pool; j++)
    for (size_t c = 0; c < 10; c++) ASSERT_NEAR(world.stored(j)[c], world.pooled(j)[c], 2e-6);
}

TEST(PooledIndex, AnySplitGivesTheSame) {
  auto memory = World::memory();
  World world(1, 1, 0, kShape.pool, memory);
  Selected want;
  world.step(0, kTokens, want);
  for (const int size : {1, 2, 3, 5, 7, 64}) {
    auto other_memory = World::memory();
    World again(1, 1, 0, kShape.pool, other_memory);
    Selected got;
    for (int first = 0; first < kTokens; first += size) again.step(first, std::min(size, kTokens - first), got, 2);
    EXPECT_EQ(got, want) << size;
    for (int j = 0; j < kTokens / kShape.pool; j++) ASSERT_EQ(again.stored(j), world.stored(j)) << size << " " << j;
  }
}

// Each sequence has a ring of its own: blocks 5 and 9, prompts of 10 and 12 tokens, token by token in turn.
TEST(PooledIndex, RingsOfTwoRequestsDoNotMix) {
  auto memory = World::memory(), alone_memory = World::memory();
  World a(1, 1, 5, kShape.pool, memory), b(7, 30, 9, kShape.pool, memory);
  World alone_a(1, 1, 5, kShape.pool, alone_memory), alone_b(7, 30, 9, kShape.pool, alone_memory);
  Selected sa, sb, want_a, want_b;
  a.step(0, 10, sa);
  b.step(0, 12, sb);
  for (int i = 0; i < 50; i++) {
    a.step(10 + i, 1, sa);
    b.step(12 + i, 1, sb);
  }
  alone_a.step(0, 60, want_a);
  alone_b.step(0, 62, want_b);
  EXPECT_EQ(sa, want_a);
  EXPECT_EQ(sb, want_b);
}

// A rejected draft completes a pool; the ring still has the committed rows if it holds two pools (cache/spec.h).
TEST(PooledIndex, RejectedDraftsOverwriteNothingInARingOfTwoPools) {
  auto memory = World::memory(), alone_memory = World::memory();
  World world(1, 1, 0, 2 * kShape.pool, memory), drafts(55, 1, 0, 2 * kShape.pool, memory),
      alone(1, 1, 0, 2 * kShape.pool, alone_memory);
  Selected got, ignored, want;
  for (int p = 0; p < 100; p++) {
    world.step(p, 1, got);
    drafts.step(p + 1, 4, ignored);  // same blocks, other tokens
  }
  alone.step(0, 100, want);
  EXPECT_EQ(got, want);
}

TEST(PooledIndex, EqualScoresGoToTheLowerPool) {
  auto memory = World::memory();
  World world(1, 1, 0, kShape.pool, memory);
  Selected ignored, got;
  world.step(0, 100, ignored);
  PooledIndexArgs args = world.args(100, 1);
  const std::vector<float> zero(3);
  args.weight = zero.data();
  ThreadPool pool(1);
  std::vector<int32_t> blocks;
  for (int b = 0; b <= kTokens / kBlockTokens; b++) blocks.push_back(1 + b * 2);
  const AttentionSequence sequence{blocks, 0, 1, 100};
  Allocator allocator;
  TokenSelection selection = *TokenSelection::make(1, kShape.most_selected(), allocator);
  select_tokens(args, {&sequence, 1}, pool, selection);
  std::vector<int32_t> want;
  for (int t = 0; t < kShape.top_k; t++) want.push_back(t);
  want.push_back(100);
  EXPECT_EQ(std::vector<int32_t>(selection.row(0).begin(), selection.row(0).end()), want);
}

TEST(PooledIndex, TheSelectionsMemoryIsReservedOrRefused) {
  Allocator allocator;
  auto selection = TokenSelection::make(3, 5, allocator);
  ASSERT_TRUE(selection);
  const size_t reserved = allocator.in_use();
  EXPECT_GE(reserved, 3 * 5 * sizeof(int32_t));
  for (int again = 0; again < 2; again++) {
    selection->reset(3);
    for (int row = 0; row < 3; row++)
      for (int i = 0; i < 5; i++) selection->add(row, row * 10 + i);
    for (int row = 0; row < 3; row++) {
      const auto got = selection->row(row);
      const std::vector<int32_t> want = {row * 10, row * 10 + 1, row * 10 + 2, row * 10 + 3, row * 10 + 4};
      EXPECT_EQ(std::vector<int32_t>(got.begin(), got.end()), want);
    }
  }
  selection->reset(2);
  EXPECT_TRUE(selection->row(0).empty() && selection->row(1).empty());
  EXPECT_EQ(allocator.in_use(), reserved);
  const auto refused = TokenSelection::make(1 << 24, 1 << 30, allocator);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
}

// Beyond a row that reads all tokens, which has no scores.
TEST(PooledIndex, ARowWithAScoreThatIsNaNReadsNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kBadQuery = 150, kBadWeights = 160, kBadKey = 181, kEndOfItsPool = 183;
  auto clean_memory = World::memory();
  World clean(1, 1, 0, kShape.pool, clean_memory);
  Selected want;
  clean.step(0, kTokens, want);
  for (int p = 0; p < kTokens; p++)
    if (p == kBadQuery || p == kBadWeights || p >= kEndOfItsPool) want[static_cast<size_t>(p)].clear();
  for (const int size : {1, 3, 64, kTokens})
    for (const int threads : {1, 2, 3}) {
      auto memory = World::memory();
      World world(1, 1, 0, kShape.pool, memory);
      world.query(kBadQuery)[13] = std::nanf("");
      std::ranges::copy(std::vector{kInfinity, -kInfinity, 1.0F}, world.weight(kBadWeights));
      world.key(kBadKey)[7] = std::nanf("");
      world.query(3)[0] = std::nanf("");
      Selected got;
      for (int first = 0; first < kTokens; first += size)
        world.step(first, std::min(size, kTokens - first), got, threads);
      ASSERT_EQ(got, want) << size << " " << threads;
    }
}

TEST(PooledIndex, InfiniteScoresAreTheGreatestAndTheLeast) {
  auto memory = World::memory();
  World world(1, 1, 0, kShape.pool, memory);
  for (int p = 0; p < kTokens; p++) {
    world.weight(p)[0] = p % 2 == 0 ? 3e38F : -3e38F;
    for (int i = 0; i < kShape.dim; i++) world.query(p)[i] *= 1e4F;
  }
  Selected got;
  world.step(0, kTokens, got);
  int more_than_fit = 0, least_chosen = 0;
  for (int p = 0; p < kTokens; p++) {
    ASSERT_EQ(got[static_cast<size_t>(p)], world.reads(p)) << p;
    int greatest = 0, least = 0;
    const int pools = (p + 1) / kShape.pool, fit = kShape.top_k / kShape.pool;
    for (int j = 0; j < pools; j++) {
      greatest += world.score(p, j) == HUGE_VAL ? 1 : 0;
      least += world.score(p, j) == -HUGE_VAL ? 1 : 0;
    }
    more_than_fit += greatest > fit ? 1 : 0;
    least_chosen += pools > fit && pools - least < fit ? 1 : 0;
  }
  EXPECT_GT(more_than_fit, 0);
  EXPECT_GT(least_chosen, 0);
}

TEST(PooledIndex, RefusesImpossibleShapes) {
  EXPECT_TRUE(check_pooled_index_shape(kShape));
  for (int PooledIndexShape::* field :
       {&PooledIndexShape::pool, &PooledIndexShape::heads, &PooledIndexShape::dim, &PooledIndexShape::top_k})
    for (const int value : {0, -1, 1 << 20}) {
      PooledIndexShape shape = kShape;
      shape.*field = value;
      EXPECT_FALSE(check_pooled_index_shape(shape));
    }
  PooledIndexShape uneven = kShape;
  uneven.top_k = 23;
  EXPECT_FALSE(check_pooled_index_shape(uneven));
}

}  // namespace
}  // namespace quire::kernels
