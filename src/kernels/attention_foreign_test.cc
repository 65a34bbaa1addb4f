// A row's result does not depend on keys and values that it cannot see, whatever these are: also infinite or NaN, and
// in a tile with rows that do see them.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/attention_world.h"

namespace quire::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kBad[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()};

class ForeignKeys : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }
  static const KernelTable& writer() {
    static const KernelTable table = test_tables().back();
    return table;
  }

  // Makes K, V or both (`sides`, bits) of a token bad: the whole row, or one number of it.
  static void spoil(const AttentionShape& shape, DenseTokens& tokens, int64_t t, int sides, float bad, bool whole) {
    const int row = shape.kv_heads * shape.head_dim;
    for (int i = 0; i < row; i++) {
      if (!whole && i % shape.head_dim != t % shape.head_dim) continue;
      const auto at = static_cast<size_t>(t * row + i);
      if ((sides & 1) != 0) tokens.k[at] = bad;
      if ((sides & 2) != 0) tokens.v[at] = bad;
    }
  }

  static int64_t first_seen(const AttentionShape& shape, int64_t position) {
    int64_t lo = 0;
    if (shape.window > 0) lo = std::max(lo, position - shape.window + 1);
    if (shape.chunk > 0) lo = std::max(lo, position - position % shape.chunk);
    return lo;
  }
};

struct Mask {
  int window;
  int chunk;
};
constexpr Mask kMasks[] = {{0, 0}, {3, 0}, {40, 0}, {300, 0}, {0, 7}, {0, 100}, {0, 256}};

std::string describe(const AttentionShape& s) {
  return std::string(name_of(s.dtype)) + " D " + std::to_string(s.head_dim) + " group " +
         std::to_string(s.q_heads / s.kv_heads) + " window " + std::to_string(s.window) + " chunk " +
         std::to_string(s.chunk);
}

// All that one row of a prompt does not see is bad at once.
TEST_F(ForeignKeys, EverythingElseIsBad) {
  unsigned seed = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8})
    for (const Mask& mask : kMasks)
      for (const int head_dim : {24, 80}) {
        AttentionShape shape = shape_of(head_dim, 16, head_dim == 24 ? 1 : 3, 1, dtype);
        shape.window = mask.window;
        shape.chunk = mask.chunk;
        constexpr int64_t kFirst = 505;
        constexpr int kRows = 13;  // over the edge of a softmax chunk
        std::mt19937 rng(++seed);
        const DenseTokens clean = random_tokens(shape, kFirst + kRows, rng);
        for (int row = 0; row < kRows; row++) {
          DenseTokens tokens = clean;
          for (int64_t t = 0; t < kFirst + kRows; t++)
            if (t < first_seen(shape, kFirst + row) || t > kFirst + row)
              spoil(shape, tokens, t, 3, kBad[static_cast<size_t>(t + row) % 4], row % 2 == 0);
          AttentionWorld world(shape, 64, 0, seed);
          world.set_options(row % 3 == 1 ? 3.0F : 0.0F, row % 3 == 2);
          world.add(writer(), tokens, kFirst, kRows);
          const auto& want = world.oracle();
          for (const KernelTable& table : test_tables()) {
            const auto got = world.run(table, 1);
            const size_t at = static_cast<size_t>(world.sequences()[0].first_row + row) * world.stride();
            ASSERT_EQ(std::memcmp(&want[at], &got[at], static_cast<size_t>(shape.q_heads * head_dim) * sizeof(float)),
                      0)
                << describe(shape) << " row " << row << " " << name_of(table.isa);
            ASSERT_FALSE(std::isnan(got[at]));
          }
        }
      }
}

// One bad key, value or token at a time: every row of the step is what it sees, also those that see it.
TEST_F(ForeignKeys, OneIsBad) {
  unsigned seed = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8})
    for (const Mask& mask : kMasks) {
      AttentionShape shape = shape_of(24, 16, 2, 2, dtype);
      shape.window = mask.window;
      shape.chunk = mask.chunk;
      constexpr int64_t kFirst = 250;
      constexpr int kRows = 9;
      std::mt19937 rng(++seed);
      const DenseTokens clean = random_tokens(shape, kFirst + kRows, rng);
      for (int64_t t = kFirst - 45; t < kFirst + kRows; t += t < kFirst - 4 ? 6 : 1) {
        DenseTokens tokens = clean;
        const auto kind = static_cast<size_t>(t) % 4;
        spoil(shape, tokens, t, 1 + static_cast<int>(rng() % 3), kBad[kind], rng() % 2 == 0);
        AttentionWorld world(shape, 64, 0, seed);
        world.set_options(0, t % 2 == 0);
        world.add(writer(), tokens, kFirst, kRows);
        for (const KernelTable& table : test_tables())
          ASSERT_EQ(world.compare(world.run(table, 2)), "")
              << describe(shape) << " token " << t << " " << kBad[kind] << " " << name_of(table.isa);
      }
    }
}

// Requests share a prefix and, by their windows, see different parts of its pages in one tile.
TEST_F(ForeignKeys, InSharedPages) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8})
    for (const int head_dim : {24, 128})
      for (const int window : {400, 300}) {
        AttentionShape shape = shape_of(head_dim, 64, 1, 2, dtype);
        shape.window = window;
        std::mt19937 rng(static_cast<unsigned>(head_dim));
        const int64_t depths[] = {700, 520, 640, 512, 799};
        DenseTokens prefix = random_tokens(shape, 701, rng);
        // Seen by the second and the fourth of them, but not by the others.
        for (int64_t t = 230; t < 241; t++) spoil(shape, prefix, t, 3, kBad[static_cast<size_t>(t) % 4], t % 2 == 0);
        for (int64_t t = 257; t < 300; t += 7) spoil(shape, prefix, t, 2, kBad[static_cast<size_t>(t) % 4], false);
        AttentionWorld world(shape, 64, 0, 9);
        world.add(writer(), prefix, depths[0], 1);
        for (int i = 1; i < 5; i++) world.add(writer(), depths[i], 1, 0, 512);
        for (const KernelTable& table : test_tables())
          for (const int threads : {1, 2})
            EXPECT_EQ(world.compare(world.run(table, threads)), "") << describe(shape) << " " << name_of(table.isa);
        const auto got = world.run(writer(), 1);
        EXPECT_FALSE(std::isnan(got[static_cast<size_t>(world.sequences()[0].first_row) * world.stride()]));
        EXPECT_TRUE(std::isnan(got[static_cast<size_t>(world.sequences()[3].first_row) * world.stride()]));
      }
}

// A key whose score is NaN spoils the rows that see it, wherever it lies and however many masked keys follow.
TEST_F(ForeignKeys, SeenNanIsNan) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8})
    for (const int window : {0, 1, 20}) {
      AttentionShape shape = shape_of(16, 16, 1, 1, dtype);
      shape.window = window;
      for (const int64_t bad : {0, 1, 15, 16, 17, 30}) {
        std::mt19937 rng(4);
        DenseTokens tokens = random_tokens(shape, 60, rng);
        spoil(shape, tokens, bad, 1, kBad[2], true);
        AttentionWorld world(shape, 64, 0);
        world.add(writer(), tokens, 0, 60);
        for (const KernelTable& table : test_tables()) {
          const auto got = world.run(table, 1);
          for (int64_t t = 0; t < 60; t++) {
            const bool seen = t >= bad && (window == 0 || t < bad + window);
            for (size_t d = 0; d < 16; d++)
              ASSERT_EQ(std::isnan(got[static_cast<size_t>(t + 1) * world.stride() + d]), seen)
                  << describe(shape) << " bad " << bad << " token " << t << " " << name_of(table.isa);
          }
        }
      }
    }
}

}  // namespace
}  // namespace quire::kernels
