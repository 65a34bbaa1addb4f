#include "weights/tensor.h"

#include <gtest/gtest.h>

#include <cstring>

namespace quire::weights {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Row n of F32 is n, n + 0.5, n + 1, ...
class Counting final : public RowSource {
 public:
  explicit Counting(std::string_view method) : method_(method) {}
  void make_row(int64_t n, std::span<std::byte> blocks) const override {
    for (size_t i = 0; i < blocks.size() / 4; ++i) {
      const float value = static_cast<float>(n) + static_cast<float>(i) / 2;
      std::memcpy(blocks.data() + 4 * i, &value, 4);
    }
  }
  void add_to_digest(Sha256& hash) const override { hash.update(bytes_of(method_)); }

 private:
  std::string_view method_;
};

Sha256Digest digest_of(const Tensor& tensor) {
  Sha256 hash;
  add_to_digest(tensor, hash);
  return hash.finish();
}

TEST(Tensor, SizesFollowFromShapeAndFormat) {
  const Tensor matrix{.name = "m", .format = WeightFormat::kQ4_K, .shape = {3, 512}};
  EXPECT_EQ(matrix.row_count(), 3);
  EXPECT_EQ(matrix.row_bytes(), 288U);
  EXPECT_EQ(matrix.bytes(), 864U);
  const Tensor deep{.name = "d", .format = WeightFormat::kBF16, .shape = {5, 2, 4}};
  EXPECT_EQ(deep.row_count(), 10);
  EXPECT_EQ(deep.row_bytes(), 8U);
  const Tensor scalar{.name = "s", .format = WeightFormat::kF32, .shape = {}};
  EXPECT_EQ(scalar.row_count(), 1);
  EXPECT_EQ(scalar.bytes(), 4U);
}

TEST(Tensor, RowsLieInDataOrAreMade) {
  std::vector<float> numbers = {0, 0.5F, 1, 1, 1.5F, 2};
  const Tensor plain{.name = "t", .shape = {2, 3}, .data = std::as_bytes(std::span(numbers))};
  const Counting counting("counting");
  const Tensor made{.name = "t", .shape = {2, 3}, .made = &counting};
  std::vector<std::byte> scratch(12);
  EXPECT_EQ(plain.row(1, {}).data(), plain.data.data() + 12);
  EXPECT_EQ(std::memcmp(made.row(1, scratch).data(), plain.data.data() + 12, 12), 0);
  for (const Tensor& tensor : {plain, made}) {
    std::vector<float> wide(6);
    widen(tensor, wide);
    EXPECT_EQ(wide, numbers);
  }
}

TEST(Tensor, TheDigestIsOfNameFormatShapeAndContent) {
  const std::vector<float> numbers = {1, 2};
  Tensor tensor{.name = "a.weight", .shape = {1, 2}, .data = std::as_bytes(std::span(numbers))};
  Sha256 by_hand;
  by_hand.update(bytes_of("a.weight [1, 2] F32\n"));
  by_hand.update(tensor.data);
  const Sha256Digest plain = digest_of(tensor);
  EXPECT_EQ(plain, by_hand.finish());
  const Counting one("one"), two("two");
  tensor.made = &one;
  const Sha256Digest made = digest_of(tensor);
  EXPECT_NE(made, plain);
  tensor.made = &two;
  EXPECT_NE(digest_of(tensor), made);
}

}  // namespace
}  // namespace quire::weights
