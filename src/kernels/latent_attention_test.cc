#include "kernels/latent_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/test_numbers.h"
#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

constexpr int kBlockTokens = 32;
constexpr int kTokens = 600;  // more than two chunks of rule 6

constexpr LatentShape shape_of(DType dtype) {
  return {.heads = 3, .nope_dim = 9, .rope_dim = 4, .value_dim = 7, .rank = 17, .dtype = dtype};
}

// One sequence in scattered blocks with gaps between rows and blocks; what is not written is NaN.
class World {
 public:
  explicit World(DType dtype) : World(shape_of(dtype), test_tables().back()) {}
  World(const LatentShape& shape, const KernelTable& table) : World(shape, table, shape.dtype) {}
  World(const LatentShape& shape, const KernelTable& table, DType expansion) : shape_(shape), table_(table) {
    row_bytes_ = latent_row_bytes(shape_) + 4;
    const size_t block_bytes = kBlockTokens * row_bytes_ + 64;
    const int blocks = kTokens / kBlockTokens + 1;
    for (int b = 0; b < blocks; b++) blocks_.push_back(1 + (b * 7) % blocks);
    memory_.assign(static_cast<size_t>(blocks + 1) * block_bytes, std::byte{0xff});
    view_ = {memory_.data(), block_bytes, row_bytes_, kBlockTokens};
    rows_ = test_numbers(kTokens * stride(), 1);
    queries_ = test_numbers(kTokens * query_width(), 2);
    expansion_ = test_numbers(static_cast<size_t>(shape_.expansion_rows() * shape_.rank), 3);
    if (expansion == DType::kBF16)
      for (float& w : expansion_) w = bf16_to_float(float_to_bf16(w));
    packed_ = Expansion(shape_, expansion_, expansion);
    EXPECT_TRUE(workspace_.reserve(shape_, kTokens, 2, allocator_));
  }

  size_t stride() const { return static_cast<size_t>(shape_.row_dim()) + 2; }
  size_t query_width() const { return static_cast<size_t>(shape_.heads * shape_.query_dim()); }
  size_t out_width() const { return static_cast<size_t>(shape_.heads * shape_.value_dim); }
  const LatentShape& shape() const { return shape_; }
  // The dimensions with rope of a row's first head.
  std::vector<float> rope_query(int row) const {
    const float* q = queries_.data() + static_cast<size_t>(row) * query_width() + shape_.nope_dim;
    return {q, q + shape_.rope_dim};
  }
  RowView& view() { return view_; }
  float& query(int row, int head, int i) {
    return queries_[static_cast<size_t>(row) * query_width() + static_cast<size_t>(head * shape_.query_dim() + i)];
  }
  // Changes a number of the expansion: row `n` of a head, column `r`.
  void expand(int head, int n, int r, float x) {
    expansion_[static_cast<size_t>((head * (shape_.nope_dim + shape_.value_dim) + n) * shape_.rank + r)] = x;
    packed_ = Expansion(shape_, expansion_, packed_.dtype());
  }
  std::byte* row(int64_t token) { return sequence_row(view_, blocks_.data(), token); }

  void write(int first, int count) {
    ThreadPool pool(1);
    std::vector<int64_t> slots;
    for (int t = first; t < first + count; t++)
      slots.push_back(int64_t{blocks_[static_cast<size_t>(t / kBlockTokens)]} * kBlockTokens + t % kBlockTokens);
    write_latents(shape_, view_, slots, rows_.data() + static_cast<size_t>(first) * stride(), stride(), pool);
  }

  // Rows [first, first + count) written and attended, as a step would.
  void step(int first, int count, std::vector<float>& out, int threads = 1, const TokenSelection* selected = nullptr) {
    ThreadPool pool(threads);
    write(first, count);
    const auto at = static_cast<size_t>(first);
    const AttentionSequence sequence{blocks_, 0, count, first};
    attend_latents(table_,
                   {.shape = shape_,
                    .cache = view_,
                    .expansion = &packed_,
                    .scale = 0.7F,
                    .q = queries_.data() + at * query_width(),
                    .q_stride = query_width(),
                    .out = out.data() + at * out_width(),
                    .out_stride = out_width(),
                    .selected = selected},
                   {&sequence, 1}, workspace_, pool);
  }

  // The equations in double, keys and values of every head made from the rows as the model gives them.
  std::vector<double> dense(int row, int head, std::span<const int> tokens) const {
    const auto w = [&](int n, int r) {
      const int per_head = shape_.nope_dim + shape_.value_dim;
      return static_cast<double>(expansion_[static_cast<size_t>((head * per_head + n) * shape_.rank + r)]);
    };
    const auto latent = [&](int t, int r) {
      return static_cast<double>(rows_[static_cast<size_t>(t) * stride() + static_cast<size_t>(r)]);
    };
    const float* q =
        queries_.data() + static_cast<size_t>(row) * query_width() + static_cast<size_t>(head * shape_.query_dim());
    std::vector<double> weight, out(static_cast<size_t>(shape_.value_dim));
    double sum = 0;
    for (const int t : tokens) {
      double s = 0;
      for (int n = 0; n < shape_.nope_dim; n++)
        for (int r = 0; r < shape_.rank; r++) s += static_cast<double>(q[n]) * w(n, r) * latent(t, r);
      for (int i = 0; i < shape_.rope_dim; i++)
        s += static_cast<double>(q[shape_.nope_dim + i]) * latent(t, shape_.rank + i);
      weight.push_back(std::exp(s * static_cast<double>(0.7F)));
      sum += weight.back();
    }
    for (size_t i = 0; i < tokens.size(); i++)
      for (int v = 0; v < shape_.value_dim; v++)
        for (int r = 0; r < shape_.rank; r++)
          out[static_cast<size_t>(v)] += weight[i] / sum * w(shape_.nope_dim + v, r) * latent(tokens[i], r);
    return out;
  }

 private:
  LatentShape shape_;
  KernelTable table_;
  Allocator allocator_;
  LatentWorkspace workspace_;
  Expansion packed_;
  size_t row_bytes_ = 0;
  std::vector<int32_t> blocks_;
  std::vector<std::byte> memory_;
  RowView view_;
  std::vector<float> rows_, queries_, expansion_;
};

std::vector<int> up_to(int last) {
  std::vector<int> tokens;
  for (int t = 0; t <= last; t++) tokens.push_back(t);
  return tokens;
}

TEST(LatentAttention, IsTheEquations) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World world(dtype);
    std::vector<float> out(kTokens * world.out_width());
    world.step(0, kTokens, out);
    for (const int row : {0, 1, 15, 16, 255, 256, 257, 511, 599})
      for (int head = 0; head < 3; head++) {
        const auto want = world.dense(row, head, up_to(row));
        for (size_t v = 0; v < want.size(); v++) {
          const float got = out[static_cast<size_t>(row) * world.out_width() + static_cast<size_t>(head) * 7 + v];
          ASSERT_NEAR(got, want[v], dtype == DType::kF32 ? 3e-6 : 3e-2) << row << " " << head;
        }
      }
  }
}

TEST(LatentAttention, AnySplitAndAnyThreadsGiveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World world(dtype);
    std::vector<float> want(kTokens * world.out_width());
    world.step(0, kTokens, want);
    for (const int size : {1, 3, 16, 250, 599}) {
      World again(dtype);
      std::vector<float> got(want.size());
      for (int first = 0; first < kTokens; first += size) again.step(first, std::min(size, kTokens - first), got, 2);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << size;
    }
  }
}

TEST(LatentAttention, RowsAreWholeWords) {
  EXPECT_EQ(latent_row_bytes({.rope_dim = 4, .rank = 17}), 44U);  // 42 in bf16
  EXPECT_EQ(latent_row_bytes({.rope_dim = 4, .rank = 17, .dtype = DType::kF32}), 84U);
}

TEST(LatentAttention, ReadsTheSelectedTokensAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World world(dtype);
    std::vector<float> out(kTokens * world.out_width());
    world.step(0, kTokens - 1, out);
    const std::vector<int> tokens = {3, 4, 7, 255, 256, 300, 301, 599};
    Allocator allocator;
    TokenSelection selection = *TokenSelection::make(1, 8, allocator);
    selection.reset(1);
    for (const int t : tokens) selection.add(0, t);
    world.step(kTokens - 1, 1, out, 1, &selection);
    std::vector<float> want(out.end() - static_cast<ptrdiff_t>(world.out_width()), out.end());
    for (int head = 0; head < 3; head++) {
      const auto dense = world.dense(kTokens - 1, head, tokens);
      for (size_t v = 0; v < dense.size(); v++)
        ASSERT_NEAR(want[static_cast<size_t>(head) * 7 + v], dense[v], dtype == DType::kF32 ? 3e-6 : 3e-2);
    }
    // Rows that nobody chose may hold anything.
    for (const int t : {0, 5, 6, 257, 598}) std::memset(world.row(t), 0xff, latent_row_bytes(world.shape()));
    world.step(kTokens - 1, 1, out, 1, &selection);
    EXPECT_EQ(std::memcmp(want.data(), out.data() + out.size() - want.size(), want.size() * sizeof(float)), 0);
  }
}

TEST(LatentAttention, ABadTokenSpoilsOnlyRowsThatReadIt) {
  World world(DType::kBF16);
  std::vector<float> want(kTokens * world.out_width()), got(want.size());
  world.step(0, kTokens, want);
  World other(DType::kBF16);
  for (const size_t from : {size_t{0}, size_t{34}}) {  // of the whole row, of its rope alone
    other.step(0, 300, got);
    std::memset(other.row(299) + from, 0xff, 42 - from);  // NaN
    other.step(300, 300, got);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), 300 * other.out_width() * sizeof(float)), 0);
    for (size_t i = 300 * other.out_width(); i < got.size(); i++) ASSERT_TRUE(std::isnan(got[i])) << i;
  }
}

// One number of a query, without rope and with, or of the expansion, in keys and in values: its head alone is NaN.
TEST(LatentAttention, KeepsWhatIsNoNumber) {
  constexpr int kRow = 300, kHead = 1, kValue = 2;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto expect_nan = [](World& world, auto where) {
    std::vector<float> out(kTokens * world.out_width());
    world.write(0, kTokens);
    world.step(kRow, 2, out);
    for (int i = 0; i < 2 * 3 * 7; i++)
      ASSERT_EQ(std::isnan(out[kRow * world.out_width() + static_cast<size_t>(i)]), where(i / 21, i / 7 % 3, i % 7))
          << i;
  };
  for (const KernelTable& table : test_tables())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const LatentShape shape = shape_of(dtype);
      for (const int in_query : {3, 11}) {
        World world(shape, table);
        world.query(kRow, kHead, in_query) = kNan;
        expect_nan(world, [](int row, int head, int) { return row == 0 && head == kHead; });
      }
      World key(shape, table), value(shape, table);
      key.expand(kHead, 4, 5, kNan);
      expect_nan(key, [](int, int head, int) { return head == kHead; });
      value.expand(kHead, shape.nope_dim + kValue, 5, kNan);
      expect_nan(value, [](int, int head, int v) { return head == kHead && v == kValue; });
    }
}

TEST(LatentAttention, TheWorkspaceIsReservedOrRefused) {
  Allocator allocator;
  LatentWorkspace workspace;
  ASSERT_TRUE(workspace.reserve(shape_of(DType::kBF16), 3, 2, allocator));
  const size_t reserved = allocator.in_use();
  EXPECT_GT(reserved, 0U);
  ASSERT_TRUE(workspace.reserve(shape_of(DType::kF32), 2, 1, allocator));
  EXPECT_EQ(allocator.in_use(), reserved);
  const LatentShape huge{.heads = 1 << 10, .nope_dim = 1 << 10, .value_dim = 1 << 10, .rank = 1 << 12};
  const auto refused = workspace.reserve(huge, 32, 1 << 20, allocator);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_EQ(allocator.in_use(), reserved);
}

TEST(LatentAttention, ARowThatReadsNothingIsNaN) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World world(dtype);
    std::vector<float> out(kTokens * world.out_width());
    Allocator allocator;
    TokenSelection selection = *TokenSelection::make(3, 1, allocator);
    selection.reset(3);
    for (const int row : {0, 2}) selection.add(row, row);
    world.step(0, 3, out, 2, &selection);
    for (size_t i = 0; i < 3 * world.out_width(); i++) ASSERT_EQ(std::isnan(out[i]), i / world.out_width() == 1) << i;
  }
}

// Scores of a whole chunk may overflow to -infinity: it counts as absent, as in attention over heads.
TEST(LatentAttention, AChunkOfMinusInfinityChangesNothing) {
  World world(DType::kF32), other(DType::kF32);
  std::vector<float> want(kTokens * world.out_width()), got(want.size());
  const auto width = static_cast<size_t>(world.shape().row_dim());
  Allocator allocator;
  TokenSelection late = *TokenSelection::make(1, kTokens, allocator);
  late.reset(1);
  for (int t = 256; t < kTokens; t++) late.add(0, t);
  world.step(0, kTokens, want);
  world.step(kTokens - 1, 1, want, 1, &late);
  // Keys that are huge against the last row's first head, in the dimensions of rope alone.
  other.step(0, kTokens, got);
  const std::vector<float> q = other.rope_query(kTokens - 1);
  float score = 0;
  for (const float x : q) score -= std::abs(x) * 0x1p127F * 1.9F;
  ASSERT_EQ(score, -std::numeric_limits<float>::infinity());
  for (int t = 0; t < 256; t++) {
    std::vector<float> row(width, 0.0F);
    for (size_t i = 0; i < q.size(); i++) row[width - q.size() + i] = std::copysign(0x1p127F, -q[i]) * 1.9F;
    std::memcpy(other.row(t), row.data(), width * sizeof(float));
  }
  other.step(kTokens - 1, 1, got);
  const size_t head = 7, last = (kTokens - 1) * other.out_width();
  EXPECT_EQ(std::memcmp(got.data() + last, want.data() + last, head * sizeof(float)), 0);
  // Not if a score among them is NaN.
  std::memset(other.row(17), 0xff, width * sizeof(float));
  other.step(kTokens - 1, 1, got);
  for (size_t i = 0; i < head; i++) EXPECT_TRUE(std::isnan(got[last + i]));
}

// Random shapes; prompts, single rows and selected keys, beside a key that is NaN and one that is huge.
TEST(LatentAttention, EveryInstructionSetGivesTheSameBits) {
  const auto tables = test_tables();
  std::mt19937 random(7);
  const auto up_to = [&](int n) { return 1 + static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 12; round++) {
    LatentShape shape{.heads = round % 3 == 0 ? 16 : up_to(20),
                      .nope_dim = up_to(70),
                      .rope_dim = 2 * (up_to(20) - 1),
                      .value_dim = up_to(40),
                      .rank = round % 2 == 0 ? 16 * up_to(9) : up_to(140),
                      .dtype = round % 4 < 3 ? DType::kBF16 : DType::kF32};
    if (round % 3 == 1) shape.rank = 32 * (1 + up_to(3)) - shape.rope_dim;  // rows of whole blocks
    const int prompt = up_to(70), last = kTokens - 1;
    const int bad = up_to(600) - 1, huge = up_to(600) - 1;
    std::vector<float> want;
    for (const KernelTable& table : tables)
      for (const int threads : {1, 2}) {
        World world(shape, table, round % 6 == 5 ? DType::kF32 : shape.dtype);
        std::vector<float> out(kTokens * world.out_width());
        world.step(0, prompt, out, threads);
        Allocator allocator;
        TokenSelection selection = *TokenSelection::make(2, kTokens, allocator);
        selection.reset(2);
        for (int t = 0; t < kTokens; t += 1 + t % 7) selection.add(0, t);
        for (int t = 3; t < kTokens; t += t < 250 ? 50 : 3) selection.add(1, t);
        world.write(prompt, kTokens - prompt);
        world.step(last - 1, 2, out, threads, &selection);
        world.step(last - 2, 1, out, threads);
        const auto change = [&](int token, float x) {
          const auto number = float_to_bf16(x);
          std::byte* row = world.row(token);
          if (shape.dtype == DType::kF32) {
            std::memcpy(row, &x, sizeof x);
          } else {
            std::memcpy(row, &number, sizeof number);
          }
        };
        change(huge, 0x1p120F);
        world.step(400, 3, out, threads);
        change(bad, std::numeric_limits<float>::quiet_NaN());
        world.step(500, 2, out, threads);
        for (float& x : out)
          if (std::isnan(x)) x = std::numeric_limits<float>::quiet_NaN();  // of two, either may come out
        if (want.empty()) want = out;
        EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0)
            << "round " << round << ", " << describe(table) << ", " << threads << " threads";
      }
  }
}

TEST(LatentAttention, RefusesImpossibleShapes) {
  const LatentShape good{.heads = 2, .nope_dim = 8, .rope_dim = 4, .value_dim = 8, .rank = 16};
  EXPECT_TRUE(check_latent_shape(good));
  for (int LatentShape::* field : {&LatentShape::heads, &LatentShape::nope_dim, &LatentShape::rope_dim,
                                   &LatentShape::value_dim, &LatentShape::rank})
    for (const int value : {-1, 1 << 20}) {
      LatentShape shape = good;
      shape.*field = value;
      EXPECT_FALSE(check_latent_shape(shape));
    }
  LatentShape odd = good;
  odd.rope_dim = 3;
  EXPECT_FALSE(check_latent_shape(odd));
  LatentShape bytes = good;
  bytes.dtype = DType::kI8;
  EXPECT_FALSE(check_latent_shape(bytes));
}

}  // namespace
}  // namespace quire::kernels
