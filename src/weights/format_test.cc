#include "weights/format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "weights/gguf.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

// The fixture's expectations come from the gguf package's own dequantize (tests/golden/weights/make_fixtures.py); its
// blocks have zero, denormal and extreme scales.
void expect_golden_values() {
  auto file = GgufFile::open(golden("formats.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  for (int i = 1; i < static_cast<int>(WeightFormat::kAffine4); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const std::string name = format_info(format).name;
    const auto given = (*file)->require(name), expected = (*file)->require(name + ".f32");
    ASSERT_TRUE(given && expected) << name;
    ASSERT_EQ((*given)->format, format);
    ASSERT_EQ((*given)->shape, (*expected)->shape) << name;
    std::vector<float> out(static_cast<size_t>((*given)->elements()));
    dequantise(format, (*given)->data, out);
    ASSERT_EQ((*expected)->data.size(), out.size() * sizeof(float));
    for (size_t k = 0; k < out.size(); ++k) {
      float want = 0;
      std::memcpy(&want, (*expected)->data.data() + k * sizeof want, sizeof want);
      ASSERT_EQ(std::bit_cast<uint32_t>(out[k]), std::bit_cast<uint32_t>(want))
          << name << " element " << k << ": " << out[k] << ", not " << want;
    }
  }
}

TEST(Dequantise, GivesTheReferencesBits) { expect_golden_values(); }

TEST(Dequantise, GivesTheSameBitsWhenDenormalsAreFlushed) {
  std::thread([] {
    set_flush_denormals();
    expect_golden_values();
  }).join();
}

TEST(Dequantise, CopiesF32Bits) {
  const uint32_t bits[] = {0, 0x80000000, 1, 0x007fffff, 0x7f7fffff, 0x7fc00001};
  std::vector<float> out(std::size(bits));
  dequantise(WeightFormat::kF32, std::as_bytes(std::span(bits)), out);
  EXPECT_EQ(std::memcmp(out.data(), bits, sizeof bits), 0);
}

TEST(FormatInfo, NamesAndSizesAreGgmls) {
  EXPECT_STREQ(format_info(WeightFormat::kF32).name, "F32");
  EXPECT_STREQ(format_info(WeightFormat::kQ6_K).name, "Q6_K");
  EXPECT_EQ(format_info(WeightFormat::kQ4_1).block_bytes, 2 + 2 + 16);
  EXPECT_EQ(format_info(WeightFormat::kQ5_K).block_bytes, 2 + 2 + 12 + 32 + 128);
  EXPECT_FALSE(is_quantised(WeightFormat::kBF16));
  EXPECT_TRUE(is_quantised(WeightFormat::kQ8_0));
}

TEST(DequantiseDeathTest, RefusesPartsOfBlocks) {
  std::vector<std::byte> blocks(34);
  std::vector<float> out(32);
  const std::span<const std::byte> given(blocks);
  EXPECT_DEATH(dequantise(WeightFormat::kQ8_0, given.first(33), out), "check failed");
  EXPECT_DEATH(dequantise(WeightFormat::kQ8_0, given, std::span(out).first(31)), "check failed");
  EXPECT_DEATH(dequantise(WeightFormat::kQ8_0, given.first(0), out), "check failed");
}

}  // namespace
}  // namespace quire::weights
