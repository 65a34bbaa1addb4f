#include "weights/rounded_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "weights/gguf.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

Sha256Digest digest_of(const Tensor& tensor) {
  Sha256 hash;
  add_to_digest(tensor, hash);
  return hash.finish();
}

std::unique_ptr<TensorSource> golden_numbers() { return std::move(*GgufFile::open(golden("quantise.gguf"))); }

TEST(RoundedSource, PresentsChosenTensorsAndPassesTheRestOn) {
  const RoundedSource source(golden_numbers(), {{"numbers", WeightFormat::kQ8_0}});
  ASSERT_EQ(source.tensors().size(), 3U);
  const Tensor* numbers = source.find("numbers");
  ASSERT_NE(numbers, nullptr);
  EXPECT_EQ(numbers, &source.tensors()[0]);
  EXPECT_EQ(numbers, *source.require("numbers"));
  EXPECT_EQ(describe(*numbers), "[4, 480] Q8_0");
  const Tensor* reference = source.find("Q8_0");
  std::vector<std::byte> scratch(numbers->row_bytes());
  for (int64_t n = 3; n >= 0; --n) {
    const auto got = numbers->row(n, scratch), want = reference->row(n, {});
    EXPECT_TRUE(std::ranges::equal(got, want)) << "row " << n;
  }
  EXPECT_EQ(source.find("none"), nullptr);
  EXPECT_EQ(source.require("none").error().kind, ErrorKind::kCorruptFile);
}

TEST(RoundedSource, DigestsTellMethodsApart) {
  const RoundedSource int8(golden_numbers(), {{"numbers", WeightFormat::kQ8_0}});
  const RoundedSource again(golden_numbers(), {{"numbers", WeightFormat::kQ8_0}});
  const RoundedSource int4(golden_numbers(), {{"numbers", WeightFormat::kQ4_0}});
  const auto plain = golden_numbers();
  const Sha256Digest digest = digest_of(*int8.find("numbers"));
  EXPECT_EQ(digest_of(*again.find("numbers")), digest);
  EXPECT_NE(digest_of(*int4.find("numbers")), digest);
  EXPECT_NE(digest_of(*plain->find("numbers")), digest);
  EXPECT_EQ(digest_of(*int8.find("Q4_0")), digest_of(*plain->find("Q4_0")));
}

TEST(RoundedSource, TakesFloatsInWholeBlocks) {
  EXPECT_TRUE(can_quantise({.name = "a", .format = WeightFormat::kBF16, .shape = {3, 64}}));
  EXPECT_FALSE(can_quantise({.name = "a", .format = WeightFormat::kBF16, .shape = {64, 48}}));
  EXPECT_FALSE(can_quantise({.name = "a", .format = WeightFormat::kQ8_0, .shape = {3, 64}}));
  EXPECT_FALSE(can_quantise({.name = "a", .format = WeightFormat::kF32, .shape = {}}));
}

}  // namespace
}  // namespace quire::weights
