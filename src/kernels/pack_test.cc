#include "kernels/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/dtype.h"
#include "kernels/gemm_oracle.h"

namespace quire::kernels {
namespace {

using weights::WeightFormat;

constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,    WeightFormat::kBF16,   WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1,   WeightFormat::kQ5_0,   WeightFormat::kQ5_1,
    WeightFormat::kQ2_K, WeightFormat::kQ3_K,   WeightFormat::kQ4_K,   WeightFormat::kQ5_K,
    WeightFormat::kQ6_K, WeightFormat::kIQ4_NL, WeightFormat::kIQ4_XS, WeightFormat::kMXFP4};

class Pack : public testing::Test {
 protected:
  Result<PackedMatrix> pack_one(const weights::Tensor& tensor, WeightTarget target, int slices = 1) {
    const PackSource source{&tensor};
    return pack({&source, 1}, target, slices, allocator, pool);
  }

  Allocator allocator;
  ThreadPool pool{2};
  std::mt19937 rng{3};
};

TEST_F(Pack, GatheredRowsAreWhatTheFileMeans) {
  for (WeightFormat format : kFormats) {
    const oracle::Matrix w = oracle::random_matrix(format, 70, 512, rng);
    const weights::Tensor tensor = w.tensor();
    for (WeightTarget target : {WeightTarget::kF32, WeightTarget::kBF16, WeightTarget::kNative}) {
      const auto matrix = pack_one(tensor, target);
      ASSERT_TRUE(matrix) << matrix.error().message;
      std::vector<float> row(512);
      for (int n = 0; n < w.n; n++) {
        gather_row(*matrix, n, row.data());
        std::vector<float> want(w.values.begin() + n * 512, w.values.begin() + (n + 1) * 512);
        if (matrix->layout() == Layout::kBF16) {
          for (float& x : want) x = bf16_to_float(float_to_bf16(x));
        }
        ASSERT_EQ(oracle::difference(want.data(), row.data(), 512, 512), "")
            << weights::format_info(format).name << " row " << n;
      }
    }
  }
}

TEST_F(Pack, StacksSourcesAndReordersTheirRows) {
  const oracle::Matrix q = oracle::random_matrix(WeightFormat::kQ8_0, 40, 64, rng);
  const oracle::Matrix v = oracle::random_matrix(WeightFormat::kQ8_0, 21, 64, rng);
  const weights::Tensor tensors[] = {q.tensor(), v.tensor()};
  const PackSource sources[] = {{&tensors[0], [](int n) { return 39 - n; }}, {&tensors[1]}};
  const auto matrix = pack(sources, WeightTarget::kNative, 1, allocator, pool);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ(matrix->outputs(), 61);
  EXPECT_EQ(matrix->panels(), 2);
  std::vector<float> row(64);
  for (int n = 0; n < 61; n++) {
    gather_row(*matrix, n, row.data());
    const float* want =
        n < 40 ? &q.values[static_cast<size_t>(39 - n) * 64] : &v.values[static_cast<size_t>(n - 40) * 64];
    EXPECT_EQ(oracle::difference(want, row.data(), 64, 64), "") << n;
  }
}

// Hands out the rows of a tensor in memory as if it made them.
class Copied final : public weights::RowSource {
 public:
  explicit Copied(const weights::Tensor& from) : from_(from) {}
  void make_row(int64_t n, std::span<std::byte> blocks) const override {
    std::ranges::copy(from_.row(n, {}), blocks.begin());
  }
  void add_to_digest(Sha256&) const override {}

 private:
  const weights::Tensor& from_;
};

TEST_F(Pack, RowsThatAreMadePackLikeRowsOfAFile) {
  for (WeightFormat format : kFormats) {
    const oracle::Matrix file = oracle::random_matrix(format, 150, 256, rng);
    const oracle::Matrix beside = oracle::random_matrix(format, 33, 256, rng);
    const weights::Tensor plain[] = {file.tensor(), beside.tensor()};
    const Copied copied(plain[0]);
    weights::Tensor made = plain[0];
    made.data = {};
    made.made = &copied;
    for (WeightTarget target : {WeightTarget::kF32, WeightTarget::kBF16, WeightTarget::kNative}) {
      const auto reversed = [](int n) { return 149 - n; };
      const PackSource with_file[] = {{&plain[0], reversed}, {&plain[1]}};
      const PackSource with_made[] = {{&made, reversed}, {&plain[1]}};
      const auto want = pack(with_file, target, 1, allocator, pool);
      const auto got = pack(with_made, target, 1, allocator, pool);
      ASSERT_TRUE(want && got);
      ASSERT_EQ(got->bytes(), want->bytes());
      EXPECT_EQ(std::memcmp(got->panel(0), want->panel(0), want->bytes()), 0) << weights::format_info(format).name;
    }
  }
}

TEST_F(Pack, SizesAreThoseOfTheFormats) {
  const auto bytes = [&](WeightFormat format, WeightTarget target) {
    return pack_one(oracle::random_matrix(format, 64, 256, rng).tensor(), target)->bytes();
  };
  EXPECT_EQ(bytes(WeightFormat::kQ4_0, WeightTarget::kNative), 64U * 256 / 32 * 18);
  EXPECT_EQ(bytes(WeightFormat::kQ4_1, WeightTarget::kNative), 64U * 256 / 32 * 20);
  EXPECT_EQ(bytes(WeightFormat::kQ4_K, WeightTarget::kNative), 64U * 148);
  EXPECT_EQ(bytes(WeightFormat::kQ8_0, WeightTarget::kNative), 64U * 256 / 32 * 34);
  EXPECT_EQ(bytes(WeightFormat::kQ5_0, WeightTarget::kNative), 64U * 256 / 32 * 22);
  EXPECT_EQ(bytes(WeightFormat::kQ5_1, WeightTarget::kNative), 64U * 256 / 32 * 24);
  EXPECT_EQ(bytes(WeightFormat::kQ5_K, WeightTarget::kNative), 64U * 180);
  EXPECT_EQ(bytes(WeightFormat::kQ6_K, WeightTarget::kNative), 64U * 210);
  EXPECT_EQ(bytes(WeightFormat::kQ2_K, WeightTarget::kNative), 64U * 84);
  EXPECT_EQ(bytes(WeightFormat::kQ3_K, WeightTarget::kNative), 64U * 114);
  EXPECT_EQ(bytes(WeightFormat::kIQ4_NL, WeightTarget::kNative), 64U * 256 / 32 * 18);
  EXPECT_EQ(bytes(WeightFormat::kIQ4_XS, WeightTarget::kNative), 64U * 146);
  EXPECT_EQ(bytes(WeightFormat::kMXFP4, WeightTarget::kNative), 64U * 256 / 32 * 18);
  EXPECT_EQ(bytes(WeightFormat::kF16, WeightTarget::kNative), 64U * 256 * 2);
  EXPECT_EQ(bytes(WeightFormat::kQ4_0, WeightTarget::kF32), 64U * 256 * 4);
}

TEST_F(Pack, RefusesWhatItCannotHold) {
  const oracle::Matrix w = oracle::random_matrix(WeightFormat::kQ8_0, 8, 64, rng);
  weights::Tensor tensor = w.tensor();
  EXPECT_TRUE(pack_one(tensor, WeightTarget::kNative, 2));
  const auto sliced = pack_one(tensor, WeightTarget::kNative, 4);
  ASSERT_FALSE(sliced);
  EXPECT_EQ(sliced.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(sliced.error().message.find("test.weight [8, 64] Q8_0"), std::string::npos) << sliced.error().message;
  EXPECT_FALSE(pack_one(tensor, WeightTarget::kNative, 3));
  EXPECT_FALSE(pack_one(tensor, WeightTarget::kNative, 0));

  tensor.shape = {16, 32};  // other data of the same size is fine
  EXPECT_TRUE(pack_one(tensor, WeightTarget::kNative));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 60}, {512}, {8, 64, 1}, {0, 64}, {8, 0}, {8, 96}, {int64_t{1} << 40, 64}, {-8, -64}}) {
    tensor.shape = shape;
    EXPECT_FALSE(pack_one(tensor, WeightTarget::kNative)) << describe(tensor);
    EXPECT_FALSE(pack_one(tensor, WeightTarget::kF32)) << describe(tensor);
  }
}

TEST_F(Pack, RefusesSourcesThatDoNotFitTogether) {
  const oracle::Matrix a = oracle::random_matrix(WeightFormat::kQ8_0, 8, 64, rng);
  const oracle::Matrix b = oracle::random_matrix(WeightFormat::kQ4_0, 8, 64, rng);
  const oracle::Matrix c = oracle::random_matrix(WeightFormat::kQ8_0, 8, 32, rng);
  const weights::Tensor tensors[] = {a.tensor(), b.tensor(), c.tensor()};
  const PackSource formats[] = {{&tensors[0]}, {&tensors[1]}};
  EXPECT_FALSE(pack(formats, WeightTarget::kNative, 1, allocator, pool));
  EXPECT_TRUE(pack(formats, WeightTarget::kBF16, 1, allocator, pool));
  const PackSource sizes[] = {{&tensors[0]}, {&tensors[2]}};
  EXPECT_FALSE(pack(sizes, WeightTarget::kNative, 1, allocator, pool));
}

TEST_F(Pack, SlicesAreWholeBlocksAndUnits) {
  EXPECT_EQ(slice_count(WeightFormat::kQ4_1, 1536, 1), 8);   // SmolLM2's down projection
  EXPECT_EQ(slice_count(WeightFormat::kQ4_1, 576, 192), 1);  // its o_proj: three kv-head groups
  EXPECT_EQ(slice_count(WeightFormat::kQ4_K, 2048, 1), 8);
  EXPECT_EQ(slice_count(WeightFormat::kQ4_K, 1536, 1), 2);
  EXPECT_EQ(slice_count(WeightFormat::kBF16, 1024, 256), 4);
  EXPECT_EQ(slice_count(WeightFormat::kBF16, 33, 1), 1);
}

}  // namespace
}  // namespace quire::kernels
