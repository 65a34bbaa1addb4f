#include "kernels/pooled_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/index_kernels.h"
#include "kernels/math.h"
#include "kernels/test_numbers.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

constexpr int kBlockTokens = 16;
constexpr int kTokens = 203;
constexpr PooledIndexShape kShape{.pool = 4, .heads = 3, .dim = 10, .top_k = 24, .dtype = DType::kF32};

using Selected = std::vector<std::vector<int32_t>>;  // by token

// One sequence: its inputs, its blocks of pooled keys, its block of the ring. What is not written is NaN.
class World {
 public:
  World(unsigned seed, int first_block, int ring_block, int capacity, std::vector<std::byte>& memory,
        const KernelTable& table = test_tables().back())
      : table_(table),
        inputs_(test_numbers(kTokens * kStride, seed)),
        queries_(test_numbers(kTokens * kQueries, seed + 1)),
        ring_block_(ring_block),
        capacity_(capacity) {
    for (int b = 0; b <= kTokens / kBlockTokens; b++) blocks_.push_back(first_block + b * 2);
    keys_ = {memory.data(), 512, pooled_key_bytes(kShape), kBlockTokens / kShape.pool};
    ring_ = {memory.data() + 64 * 512, 1024, open_pool_row_bytes(kShape), capacity};
    EXPECT_TRUE(workspace_.reserve(kShape, 3, allocator_));
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
    pool_keys(table_, a, {&sequence, 1}, workspace_, pool);
    TokenSelection selection = *TokenSelection::make(count, kShape.most_selected(), allocator_);
    select_tokens(table_, a, {&sequence, 1}, workspace_, pool, selection);
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

  KernelTable table_;
  Allocator allocator_;
  IndexWorkspace workspace_;
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
  IndexWorkspace workspace;
  ASSERT_TRUE(workspace.reserve(kShape, 1, allocator));
  TokenSelection selection = *TokenSelection::make(1, kShape.most_selected(), allocator);
  select_tokens(test_tables().back(), args, {&sequence, 1}, workspace, pool, selection);
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
  const int bad_gate = kShape.dim + 7;
  for (const KernelTable& table : test_tables())
    for (const int in_row : {7, bad_gate})
      for (const int size : {1, 3, 64, kTokens})
        for (const int threads : {1, 2, 3}) {
          auto memory = World::memory();
          World world(1, 1, 0, kShape.pool, memory, table);
          world.query(kBadQuery)[13] = std::nanf("");
          std::ranges::copy(std::vector{kInfinity, -kInfinity, 1.0F}, world.weight(kBadWeights));
          world.key(kBadKey)[in_row] = std::nanf("");
          world.query(3)[0] = std::nanf("");
          Selected got;
          for (int first = 0; first < kTokens; first += size)
            world.step(first, std::min(size, kTokens - first), got, threads);
          ASSERT_EQ(got, want) << describe(table) << " " << in_row << " " << size << " " << threads;
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

TEST(PooledIndex, TheWorkspaceIsReservedOrRefused) {
  Allocator allocator;
  IndexWorkspace workspace;
  ASSERT_TRUE(workspace.reserve(kShape, 2, allocator));
  const size_t reserved = allocator.in_use();
  EXPECT_GT(reserved, 0U);
  ASSERT_TRUE(workspace.reserve(kShape, 1, allocator));
  EXPECT_EQ(allocator.in_use(), reserved);
  PooledIndexShape large = kShape;
  large.dim = large.heads = 1 << 10;
  const auto refused = workspace.reserve(large, 1 << 27, allocator);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_EQ(allocator.in_use(), reserved);
  EXPECT_TRUE(workspace.holds(kShape, 2));
}

// What the header says, written once more: sums of sixteen lanes and their tree, and chains in ascending order.
float sum_of(const std::vector<float>& x) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); i++) lanes[i % 16] += x[i];
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
  return lanes[0];
}

std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& weight,
                          const std::vector<float>& bias) {
  const auto count = static_cast<float>(x.size());
  const float mean = sum_of(x) / count;
  std::vector<float> y = x, squares;
  for (float& v : y) {
    v -= mean;
    squares.push_back(v * v);
  }
  const float inverse = 1 / std::sqrt(sum_of(squares) / count + 1e-6F);
  for (size_t i = 0; i < y.size(); i++) y[i] = std::fma(y[i] * inverse, weight[i], bias[i]);
  return y;
}

std::vector<float> pooled(const std::vector<float>& rows, const std::vector<float>& bias, size_t pool, size_t dim) {
  std::vector<float> out(dim);
  for (size_t c = 0; c < dim; c++) {
    const auto logit = [&](size_t i) { return rows[(2 * i + 1) * dim + c] + bias[i * dim + c]; };
    float largest = logit(0), sum = 0, total = 0;
    for (size_t i = 1; i < pool; i++) largest = std::max(largest, logit(i));
    for (size_t i = 0; i < pool; i++) {
      const float a = exp(logit(i) - largest);
      sum += a;
      total = std::fma(a, rows[2 * i * dim + c], total);
    }
    out[c] = total / sum;
  }
  return out;
}

TEST(PooledIndex, EveryInstructionSetFollowsTheOrder) {
  set_flush_denormals();
  for (const KernelTable& table : test_tables())
    for (const size_t dim : {1U, 7U, 16U, 33U, 128U})
      for (const size_t pool : {1U, 4U, 5U}) {
        const auto rows = test_numbers(2 * pool * dim, 1), bias = test_numbers(pool * dim, 2);
        const auto weight = test_numbers(dim, 3), x = test_numbers(dim, 4), shift = test_numbers(dim, 5);
        const auto n = static_cast<int>(dim);
        std::vector<float> got(dim + 1, 7.0F);
        table.index->norm({n, x.data(), weight.data(), shift.data(), 1e-6F, got.data()});
        EXPECT_EQ(std::memcmp(got.data(), normed(x, weight, shift).data(), dim * sizeof(float)), 0) << describe(table);
        table.index->pool({static_cast<int>(pool), n, rows.data(), bias.data(), got.data()});
        EXPECT_EQ(std::memcmp(got.data(), pooled(rows, bias, pool, dim).data(), dim * sizeof(float)), 0)
            << describe(table) << " " << dim << " " << pool;
        EXPECT_EQ(got[dim], 7.0F);
      }
}

TEST(PooledIndex, EveryInstructionSetScoresInTheOrder) {
  set_flush_denormals();
  for (const KernelTable& table : test_tables())
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (const auto& [heads, dim] : {std::pair{1, 1}, {3, 10}, {16, 64}, {20, 33}, {32, 128}})
        for (const int count : {1, 2, 5, 16, 17, 32}) {
          const auto h = static_cast<size_t>(heads), d = static_cast<size_t>(dim), n = static_cast<size_t>(count);
          const size_t padded = (h + 15) / 16 * 16, wide = (d + 15) / 16 * 16, row = d * size_of(dtype);
          auto numbers = test_numbers(n * d, 1);
          const auto queries = test_numbers(h * d, 2), weights = test_numbers(h, 3);
          std::vector<std::byte> memory(n * row);
          std::vector<const std::byte*> keys;
          for (size_t i = 0; i < n; i++) {
            write_numbers(numbers.data() + i * d, dim, dtype, memory.data() + i * row);
            read_numbers(memory.data() + i * row, dim, dtype, numbers.data() + i * d);
            keys.push_back(memory.data() + i * row);
          }
          std::vector<float> turned(d * padded, std::nanf("")), room(n * (wide + padded)), got(n + 1, 7.0F);
          for (size_t i = 0; i < h * d; i++) turned[i % d * padded + i / d] = queries[i];
          const auto score = dtype == DType::kF32 ? table.index->score_f32 : table.index->score_bf16;
          score({heads, dim, count, keys.data(), turned.data(), weights.data(), room.data(), room.data() + n * wide,
                 got.data()});
          for (size_t i = 0; i < n; i++) {
            float total = 0;
            for (size_t j = 0; j < h; j++) {
              float dot = 0;
              for (size_t c = 0; c < d; c++) dot = std::fma(queries[j * d + c], numbers[i * d + c], dot);
              total = std::fma(weights[j], std::max(dot, 0.0F), total);
            }
            ASSERT_EQ(std::memcmp(&got[i], &total, sizeof total), 0)
                << describe(table) << " " << heads << " x " << dim << ", " << i << " of " << count;
          }
          EXPECT_EQ(got[n], 7.0F);
        }
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
