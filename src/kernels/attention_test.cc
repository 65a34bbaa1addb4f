#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/attention_oracle.h"
#include "kernels/attention_self_check.h"
#include "kernels/row_ops.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

// Sequences in one cache and what the oracle says of every query row. Rows of the step lie in the given order of
// sequences, with one row of padding before each, and strides are wider than the rows.
class World {
 public:
  struct Sequence {
    std::vector<int32_t> blocks;
    std::vector<int32_t> pages;
    DenseTokens tokens;
    int64_t first = 0;
    int rows = 0;
    int first_row = 0;
  };

  World(const AttentionShape& shape, int block_tokens, int gap, unsigned seed = 1)
      : shape_(shape), rng_(seed), cache_(shape, 4000 / block_tokens + 20, block_tokens, gap) {
    options_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  }

  // `rows` query tokens behind `first` earlier ones, all written through `table`. The first `shared` tokens, whole
  // blocks, are those of sequence `of`. Blocks that no row of the step can see become null.
  void add(const KernelTable& table, int64_t first, int rows, int of = -1, int64_t shared = 0) {
    add(table, random_tokens(shape_, first + rows, rng_), first, rows, of, shared);
  }
  void add(const KernelTable& table, DenseTokens dense, int64_t first, int rows, int of = -1, int64_t shared = 0) {
    Sequence s;
    const int64_t tokens = first + rows, block = cache_.view().block_tokens;
    s.first = first;
    s.rows = rows;
    s.first_row = rows_ + 1;
    s.tokens = std::move(dense);
    if (of >= 0) {
      const Sequence& from = sequences_[static_cast<size_t>(of)];
      s.blocks.assign(from.blocks.begin(), from.blocks.begin() + shared / block);
      const auto n = static_cast<ptrdiff_t>(shared * shape_.kv_heads * shape_.head_dim);
      std::copy_n(from.tokens.k.begin(), n, s.tokens.k.begin());
      std::copy_n(from.tokens.v.begin(), n, s.tokens.v.begin());
    }
    const auto own = cache_.take(tokens - shared);
    s.blocks.insert(s.blocks.end(), own.begin(), own.end());
    ThreadPool pool(2);
    cache_.write(table, s.blocks, s.tokens, shared, tokens, pool);
    int64_t seen = 0;
    if (shape_.window > 0) seen = std::max(seen, first - shape_.window + 1);
    if (shape_.chunk > 0) seen = std::max(seen, first / shape_.chunk * shape_.chunk);
    auto visible = s.blocks;
    for (int64_t b = 0; (b + 1) * block <= seen; b++) visible[static_cast<size_t>(b)] = 0;
    s.pages = cache_.pages(visible);
    rows_ += rows + 1;
    sequences_.push_back(std::move(s));
  }

  void set_options(float soft_cap, bool sinks) {
    options_.soft_cap = soft_cap;
    sinks_ = random_numbers(static_cast<size_t>(shape_.q_heads), rng_);
    options_.sinks = sinks ? sinks_.data() : nullptr;
  }

  // All rows of the step by these kernels; `only` one sequence if it is not negative.
  std::vector<float> run(const KernelTable& table, int threads, int only = -1) {
    std::vector<AttentionSequence> sequences;
    for (size_t i = 0; i < sequences_.size(); i++) {
      const Sequence& s = sequences_[i];
      if (only >= 0 && only != static_cast<int>(i)) continue;
      sequences.push_back({.pages = s.pages, .first_row = s.first_row, .num_rows = s.rows, .first_position = s.first});
    }
    return run_parts(table, sequences, threads);
  }

  std::vector<float> run_parts(const KernelTable& table, std::span<const AttentionSequence> sequences, int threads) {
    make_queries();
    AttentionPlan plan;
    plan.build(shape_, sequences, threads);
    std::vector<float> out(static_cast<size_t>(rows_) * stride(), kUntouched);
    ThreadPool pool(threads);
    for (int again = 0; again < 2; again++)  // the workspace may hold anything
      attend(table, plan, cache_.view(),
             {.q = q_.data(),
              .out = out.data(),
              .q_stride = stride(),
              .out_stride = stride(),
              .scale = options_.scale,
              .soft_cap = options_.soft_cap,
              .sinks = options_.sinks},
             workspace_, pool);
    return out;
  }

  const std::vector<float>& oracle() {
    if (!oracle_.empty()) return oracle_;
    make_queries();
    oracle_.assign(static_cast<size_t>(rows_) * stride(), kUntouched);
    for (const Sequence& s : sequences_)
      for (int t = 0; t < s.rows; t++)
        for (int h = 0; h < shape_.q_heads; h++) {
          const size_t at = static_cast<size_t>(s.first_row + t) * stride() + static_cast<size_t>(h * shape_.head_dim);
          const auto o = attention_oracle(shape_, s.tokens, q_.data() + at, h, s.first + t, options_);
          std::copy(o.begin(), o.end(), oracle_.begin() + static_cast<ptrdiff_t>(at));
        }
    return oracle_;
  }

  // Differing rows, described; empty if none.
  std::string compare(const std::vector<float>& got) {
    const auto& want = oracle();
    const auto width = static_cast<size_t>(shape_.q_heads * shape_.head_dim);
    std::string bad;
    for (size_t row = 0; row < static_cast<size_t>(rows_); row++)
      if (std::memcmp(&want[row * stride()], &got[row * stride()], width * sizeof(float)) != 0)
        bad += " " + std::to_string(row);
    return bad.empty() ? bad : "rows differ:" + bad;
  }

  void expect_same_everywhere(const std::string& what) {
    for (const KernelTable& table : test_tables())
      for (const int threads : {1, 2, 3}) {
        if (table.isa == Isa::kScalar && threads != 2) continue;  // slow
        EXPECT_EQ(compare(run(table, threads)), "")
            << what << ", " << name_of(table.isa) << (table.native_bf16 ? " native" : "") << ", " << threads
            << " threads";
      }
  }

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const TestCache& cache() const { return cache_; }
  size_t stride() const { return static_cast<size_t>(shape_.q_heads * shape_.head_dim) + 7; }

 private:
  static constexpr float kUntouched = 12345.0F;

  void make_queries() {
    if (q_.empty()) q_ = random_numbers(static_cast<size_t>(rows_) * stride(), rng_);
  }

  AttentionShape shape_;
  std::mt19937 rng_;
  TestCache cache_;
  OracleOptions options_;
  std::vector<float> sinks_;
  std::vector<Sequence> sequences_;
  int rows_ = 0;
  std::vector<float> q_;
  std::vector<float> oracle_;
  AttentionWorkspace workspace_;
};

class Attention : public ::testing::Test {
 protected:
  void SetUp() override { set_flush_denormals(); }
  static const KernelTable& writer() {
    static const KernelTable table = test_tables().back();
    return table;
  }
};

AttentionShape shape_of(int head_dim, int page, int group, int kv_heads = 1, DType dtype = DType::kBF16) {
  return {.q_heads = group * kv_heads, .kv_heads = kv_heads, .head_dim = head_dim, .page_tokens = page, .dtype = dtype};
}

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

TEST_F(Attention, DecodeDepths) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
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

// A tree of prefixes: the bits are those of every sequence alone.
TEST_F(Attention, SharedPrefixes) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
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

// The layout that attention.h describes, number by number; other bytes are not touched.
TEST_F(Attention, WriteLayout) {
  for (const KernelTable& table : test_tables())
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (const int head_dim : {8, 24, 64, 80, 192}) {
        const AttentionShape shape = shape_of(head_dim, 32, 1, 2, dtype);
        const int per = dtype == DType::kF32 ? 1 : 2, size = static_cast<int>(size_of(dtype));
        Allocator memory;
        auto buffer = memory.allocate(kv_head_bytes(dtype, 32, head_dim) * 2 * 8);
        ASSERT_TRUE(buffer);
        std::memset(buffer->data(), 0xa5, buffer->size());
        std::vector<std::byte> want(buffer->data(), buffer->data() + buffer->size());
        KvView view = {.base = buffer->data(),
                       .page_stride = buffer->size() / 8,
                       .head_stride = buffer->size() / 16,
                       .block_tokens = 64,
                       .pages_per_block = 3};
        std::mt19937 rng(2);
        // Runs, single tokens, halves of pairs, skipped ones, a page's edge.
        const std::vector<int64_t> slots = {64, 65, 66, -1, 71, 95, 96, 97, 127, -1, 3, 0, 18, 17};
        const auto k = random_numbers(slots.size() * static_cast<size_t>(head_dim) * 2 + 100, rng);
        const auto v = random_numbers(k.size(), rng);
        const auto stride = static_cast<size_t>(head_dim) * 2 + 3;
        const auto put = [&](size_t tile, size_t element, float x) {
          if (dtype == DType::kF32) {
            std::memcpy(&want[tile + element * 4], &x, 4);
          } else {
            const uint16_t b = float_to_bf16(x);
            std::memcpy(&want[tile + element * 2], &b, 2);
          }
        };
        for (size_t t = 0; t < slots.size(); t++)
          for (int h = 0; h < 2; h++)
            for (int d = 0; d < head_dim && slots[t] >= 0; d++) {
              const int64_t offset = slots[t] % 64, page = slots[t] / 64 * 3 + offset / 32;
              const int place = static_cast<int>(offset % 32), block = d / 64,
                        width = std::min(64, head_dim - block * 64);
              const size_t tile =
                  static_cast<size_t>(page) * view.page_stride + static_cast<size_t>(h) * view.head_stride;
              put(tile, static_cast<size_t>((d / per * 32 + place) * per + d % per),
                  k[t * stride + static_cast<size_t>(h * head_dim + d)]);
              put(tile + static_cast<size_t>(32 * head_dim * size),
                  static_cast<size_t>(block * 64 * 32 + (place / per * width + d % 64) * per + place % per),
                  v[t * stride + static_cast<size_t>(h * head_dim + d)]);
            }
        ThreadPool pool(2);
        write_kv(table, shape, view,
                 {.slots = slots, .k = k.data(), .v = v.data(), .k_stride = stride, .v_stride = stride}, pool);
        EXPECT_EQ(std::memcmp(want.data(), buffer->data(), want.size()), 0) << name_of(table.isa) << " " << head_dim;
      }
}

TEST_F(Attention, RoundingOfHardNumbers) {
  const float hard[16] = {0.0F,
                          -0.0F,
                          1.00390625F,
                          1.01171875F,
                          -1.00390625F,
                          3.4e38F,
                          -3.4e38F,
                          1e-38F,
                          1.17e-38F,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          std::bit_cast<float>(0x7f800001U),
                          std::bit_cast<float>(0xff800001U),
                          std::bit_cast<float>(0x007fffffU),
                          1e-45F};
  for (const KernelTable& table : test_tables()) {
    const AttentionShape shape = shape_of(16, 16, 1);
    Allocator memory;
    auto buffer = memory.allocate(kv_head_bytes(DType::kBF16, 16, 16));
    const KvView view = {.base = buffer->data(),
                         .page_stride = buffer->size(),
                         .head_stride = 0,
                         .block_tokens = 16,
                         .pages_per_block = 1};
    const int64_t slots[] = {0};
    ThreadPool pool(1);
    write_kv(table, shape, view, {.slots = slots, .k = hard, .v = hard, .k_stride = 16, .v_stride = 16}, pool);
    for (size_t d = 0; d < 16; d++) {
      uint16_t k = 0;
      std::memcpy(&k, buffer->data() + (d / 2 * 16) * 4 + d % 2 * 2, 2);
      EXPECT_EQ(k, float_to_bf16(hard[d])) << d << " " << name_of(table.isa);
    }
  }
}

TEST_F(Attention, SelfCheckNoticesWrongKernels) {
  for (const KernelTable& table : test_tables()) {
    EXPECT_TRUE(attention_self_check(table));
    EXPECT_TRUE(row_ops_self_check(table));
    AttentionKernels wrong = *table.attention;
    wrong.merge = [](float*, SoftmaxState*, const float*, const SoftmaxState*, int) {};
    KernelTable changed = table;
    changed.attention = &wrong;
    EXPECT_EQ(attention_self_check(changed).error().kind, ErrorKind::kInternal);
    RowKernels other = *table.rows;
    other.silu_mul = table.rows->gelu_tanh_mul;
    changed.rows = &other;
    EXPECT_EQ(row_ops_self_check(changed).error().kind, ErrorKind::kInternal);
  }
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
