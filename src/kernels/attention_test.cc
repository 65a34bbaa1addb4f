#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/attention_world.h"
#include "kernels/row_ops.h"
#include "kernels/self_check.h"

namespace quire::kernels {
namespace {

using World = AttentionWorld;

class Attention : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }
  static const KernelTable& writer() {
    static const KernelTable table = test_tables().back();
    return table;
  }
};

const int kHeadDims[] = {8, 16, 24, 32, 64, 80, 96, 112, 128, 192, 256};

TEST_F(Attention, EveryShape) {
  for (const int head_dim : kHeadDims)
    for (const int page : {16, 32, 64})
      for (const int group : {1, 2, 3, 4, 8}) {
        World world(shape_of(head_dim, page, group), 64, 0, static_cast<unsigned>(head_dim + page + group));
        world.add(writer(), 252, 6);  // prefill over the edge of a chunk
        world.add(writer(), 261, 1);
        world.add(writer(), 0, 3);
        world.expect_same_everywhere("D " + std::to_string(head_dim) + " page " + std::to_string(page) + " group " +
                                     std::to_string(group));
      }
}

TEST_F(Attention, EveryShapeInFp32) {
  for (const int head_dim : kHeadDims)
    for (const int page : {16, 64}) {
      World world(shape_of(head_dim, page, 3, 2, DType::kF32), 64, 0, static_cast<unsigned>(head_dim));
      world.add(writer(), 250, 9);
      world.add(writer(), 300, 1);
      world.expect_same_everywhere("D " + std::to_string(head_dim) + " page " + std::to_string(page));
    }
}

TEST_F(Attention, EveryShapeInInt8) {
  for (const int head_dim : kHeadDims)
    for (const int page : {16, 32, 64})
      for (const int group : {1, 3, 8}) {
        World world(shape_of(head_dim, page, group, 2, DType::kI8), 64, 0, static_cast<unsigned>(head_dim));
        world.add(writer(), 250, 9);
        world.add(writer(), 300, 1);
        world.add(writer(), 0, 3);
        world.expect_same_everywhere("D " + std::to_string(head_dim) + " page " + std::to_string(page));
      }
}

TEST_F(Attention, DecodeDepths) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8}) {
    World world(shape_of(32, 32, 3, 2, dtype), 64, 0);
    for (const int depth : {0, 1, 14, 15, 16, 17, 254, 255, 256, 257, 510, 511, 512, 513, 700})
      world.add(writer(), depth, 1);
    world.expect_same_everywhere("depths");
  }
}

// Parts of a prompt as separate sequences over the same blocks: the same bits wherever it is split.
TEST_F(Attention, EverySplitOfAPrompt) {
  const AttentionShape shape = shape_of(64, 64, 3);
  World whole(shape, 64, 0, 5);
  whole.add(writer(), 0, 600);
  const auto want = whole.run(writer(), 1);
  EXPECT_EQ(whole.compare(want), "");
  const World::Sequence& s = whole.sequences()[0];
  for (const int part : {1, 7, 64, 100, 255, 257, 599}) {
    std::vector<AttentionSequence> parts;
    for (int first = 0; first < 600; first += part)
      parts.push_back({.pages = s.pages,
                       .first_row = s.first_row + first,
                       .num_rows = std::min(part, 600 - first),
                       .first_position = first});
    for (const KernelTable& table : test_tables()) {
      if (table.isa == Isa::kScalar) continue;
      EXPECT_EQ(whole.compare(whole.run_parts(table, parts, 2)), "") << part << " " << name_of(table.isa);
    }
  }
}

TEST_F(Attention, WindowsChunksCapsAndSinks) {
  unsigned seed = 0;
  for (const int head_dim : {24, 64, 128})
    for (const int window : {0, 1, 5, 16, 100, 256, 300})
      for (const int chunk : {0, 7, 100, 256}) {
        if (window > 0 && chunk > 0 && chunk != 100) continue;
        AttentionShape shape = shape_of(head_dim, 16, 2);
        shape.window = window;
        shape.chunk = chunk;
        World world(shape, 64, 0, seed++);
        world.set_options(seed % 2 == 0 ? 3.0F : 0.0F, seed % 3 == 0);
        world.add(writer(), 240, 24);
        world.add(writer(), 530, 1);
        world.add(writer(), 513, 2);
        world.add(writer(), 0, 20);
        world.expect_same_everywhere("window " + std::to_string(window) + " chunk " + std::to_string(chunk) + " D " +
                                     std::to_string(head_dim));
      }
}

// Windows and chunks over int8, where the scales of keys that a row does not see may be NaN.
TEST_F(Attention, MasksOverInt8) {
  unsigned seed = 0;
  for (const int window : {0, 5, 100, 300})
    for (const int chunk : {0, 7, 256}) {
      if (window > 0 && chunk > 0) continue;
      AttentionShape shape = shape_of(64, 16, 2, 1, DType::kI8);
      shape.window = window;
      shape.chunk = chunk;
      World world(shape, 64, 0, seed++);
      world.set_options(seed % 2 == 0 ? 3.0F : 0.0F, seed % 3 == 0);
      world.add(writer(), 240, 24);
      world.add(writer(), 530, 1);
      world.add(writer(), 0, 20);
      world.expect_same_everywhere("window " + std::to_string(window) + " chunk " + std::to_string(chunk));
    }
}

// A tree of prefixes: the bits are those of every sequence alone.
TEST_F(Attention, SharedPrefixes) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8})
    for (const int window : {0, 300}) {
      AttentionShape shape = shape_of(32, 64, 4, 2, dtype);
      shape.window = window;
      World world(shape, 64, 0, 9);
      world.add(writer(), 900, 1);
      world.add(writer(), 800, 1, 0, 768);
      world.add(writer(), 100, 2);
      for (int i = 0; i < 8; i++) world.add(writer(), 770 + 20 * i, 1 + i % 3, 0, 512);
      world.add(writer(), 640, 1, 1, 640);
      world.add(writer(), 300, 30, 0, 256);  // a prompt over the prefix
      world.add(writer(), 256, 1, 0, 256);
      world.add(writer(), 700, 1, 0, 448);  // all but one page of a chunk
      world.add(writer(), 255, 1, 0, 192);
      world.expect_same_everywhere("shared");
      for (size_t i = 0; i < world.sequences().size(); i++) {
        const World::Sequence& s = world.sequences()[i];
        const auto alone = world.run(writer(), 2, static_cast<int>(i));
        const auto& want = world.oracle();
        EXPECT_EQ(std::memcmp(&alone[static_cast<size_t>(s.first_row) * world.stride()],
                              &want[static_cast<size_t>(s.first_row) * world.stride()],
                              (static_cast<size_t>(s.rows) * world.stride() - 7) * sizeof(float)),
                  0);
      }
    }
}

TEST_F(Attention, ManagerBlocksAndPackedViews) {
  for (const int block_tokens : {64, 192, 1152})
    for (const int gap : {0, 3})
      for (const int page : {16, 64}) {
        World world(shape_of(32, page, 2, 2), block_tokens, gap);
        world.add(writer(), 300, 5);
        world.add(writer(), 64, 1);
        world.expect_same_everywhere("blocks of " + std::to_string(block_tokens));
      }
}

// A sum that underflows to -0 behind the last key: absent and masked keys must not be told apart by it.
TEST_F(Attention, SignOfZero) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const int64_t depth : {15, 16, 31, 255}) {
      const AttentionShape shape = shape_of(16, 16, 1, 1, dtype);
      DenseTokens tokens = {std::vector<float>(static_cast<size_t>(depth + 1) * 16), {}};
      tokens.v = tokens.k;  // equal scores: every weight is 1
      const auto last = static_cast<size_t>(depth - depth % 2) * 16;
      for (size_t d = 0; d < 32 && last + d < tokens.v.size(); d++) tokens.v[last + d] = d < 16 ? 1.2e-38F : -1.8e-38F;
      World world(shape, 64, 0);
      world.add(writer(), tokens, depth, 1);
      world.expect_same_everywhere("sign of zero");
      EXPECT_EQ(std::signbit(world.oracle()[world.stride()]), false);
    }
}

TEST_F(Attention, ManyHeadsOfOneKvHead) {
  World world(shape_of(16, 16, 71), 64, 0);
  world.add(writer(), 270, 2);
  world.expect_same_everywhere("71 heads");
}

TEST_F(Attention, SelfCheckNoticesWrongKernels) {
  for (const KernelTable& table : test_tables()) {
    EXPECT_TRUE(attention_self_check(table));
    AttentionKernels wrong = *table.attention;
    wrong.merge = [](float*, SoftmaxState*, const float*, const SoftmaxState*, int) {};
    KernelTable changed = table;
    changed.attention = &wrong;
    EXPECT_EQ(attention_self_check(changed).error().kind, ErrorKind::kInternal);
  }
}

// Against Python's math.log1p.
TEST(QueryFactor, GrowsByWholeSteps) {
  EXPECT_EQ(query_factor(16, 0.3, 0), 1);
  EXPECT_EQ(query_factor(16, 0.3, 14), 1);
  EXPECT_FLOAT_EQ(query_factor(16, 0.3, 15), 1.2079441541679836F);
  EXPECT_FLOAT_EQ(query_factor(16, 0.3, 173), 1.719368581839511F);
  EXPECT_EQ(query_factor(8192, 0.1, 8190), 1);
  EXPECT_FLOAT_EQ(query_factor(8192, 0.1, 8191), 1.0693147180559945F);
  EXPECT_FLOAT_EQ(query_factor(8192, 0.1, 10485759), 1.7155396301896735F);
}

TEST(AttentionShapes, OnlyWhatTheKernelsCanDo) {
  const AttentionShape good = shape_of(64, 64, 3);
  EXPECT_TRUE(check_attention_shape(good));
  const auto refused = [&](auto change) {
    AttentionShape shape = good;
    change(shape);
    const auto result = check_attention_shape(shape);
    return !result && result.error().kind == ErrorKind::kUnsupported;
  };
  EXPECT_TRUE(refused([](AttentionShape& s) { s.head_dim = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.head_dim = 100; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.head_dim = 264; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.page_tokens = 48; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.kv_heads = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.kv_heads = 2; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.q_heads = 0; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.dtype = DType::kF16; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.window = -1; }));
  EXPECT_TRUE(refused([](AttentionShape& s) { s.chunk = -1; }));
}

}  // namespace
}  // namespace quire::kernels
