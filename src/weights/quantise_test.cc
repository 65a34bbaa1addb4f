#include "weights/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "weights/gguf.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using Numbers = std::array<float, kQuantisedBlock>;

std::vector<std::byte> quantised(WeightFormat format, const Numbers& numbers) {
  std::vector<std::byte> block(static_cast<size_t>(format_info(format).block_bytes));
  quantise_block(format, numbers, block);
  return block;
}

Numbers values_of(WeightFormat format, std::span<const std::byte> block) {
  Numbers numbers;
  dequantise(format, block, numbers);
  return numbers;
}

double squared_error(const Numbers& want, const Numbers& got) {
  double sum = 0;
  for (size_t i = 0; i < want.size(); ++i)
    sum += std::pow(static_cast<double>(want[i]) - static_cast<double>(got[i]), 2);
  return sum;
}

// The least squared error that any scale gives, of a fine grid of them, each fitted to the integers that it makes.
double best_error(const Numbers& x) {
  double largest = 0, best = 0, squares = 0;
  for (float v : x) largest = std::max(largest, std::abs(static_cast<double>(v)));
  for (float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  for (int step = -1200; step <= 1200; ++step) {
    if (std::abs(step) < 400) continue;
    const double inverse = step / 100.0 / largest;  // the largest becomes -12 to -4 or 4 to 12
    double xq = 0, qq = 0;
    for (float v : x) {
      const double q = std::clamp(std::nearbyint(static_cast<double>(v) * inverse), -8.0, 7.0);
      xq += static_cast<double>(v) * q;
      qq += q * q;
    }
    if (qq > 0) best = std::max(best, xq * xq / qq);
  }
  return squares - best;
}

// "numbers" of quantise.gguf, block by block, and what the gguf package made of them.
struct Golden {
  std::vector<Numbers> numbers;
  std::vector<std::vector<std::byte>> q8_0, q4_0;
};

Golden read_golden() {
  auto file = GgufFile::open(golden("quantise.gguf"));
  if (!file) throw std::runtime_error(file.error().message);
  Golden all;
  const auto blocks = [&](const char* name, size_t size, size_t i) {
    return (*(*file)->require(name))->data.subspan(i * size, size);
  };
  for (size_t i = 0; i < 60; ++i) {
    all.numbers.push_back(values_of(WeightFormat::kF32, blocks("numbers", 128, i)));
    const auto q8 = blocks("Q8_0", 34, i), q4 = blocks("Q4_0", 18, i);
    all.q8_0.emplace_back(q8.begin(), q8.end());
    all.q4_0.emplace_back(q4.begin(), q4.end());
  }
  return all;
}

TEST(Quantise, Q8_0IsTheReferences) {
  const Golden all = read_golden();
  for (size_t i = 0; i < all.numbers.size(); ++i)
    EXPECT_EQ(quantised(WeightFormat::kQ8_0, all.numbers[i]), all.q8_0[i]) << "block " << i;
}

TEST(Quantise, Q4_0IsCloserThanTheReferenceAndNearlyTheBest) {
  const Golden all = read_golden();
  double ours = 0, reference = 0, best = 0;  // relative to each block's own best
  int blocks = 0;
  for (size_t i = 6; i < all.numbers.size(); ++i) {  // the random ones
    const Numbers& x = all.numbers[i];
    const double least = best_error(x);
    ours += squared_error(x, values_of(WeightFormat::kQ4_0, quantised(WeightFormat::kQ4_0, x))) / least;
    reference += squared_error(x, values_of(WeightFormat::kQ4_0, all.q4_0[i])) / least;
    best += 1;
    ++blocks;
  }
  ASSERT_EQ(blocks, 54);
  EXPECT_LT(ours, 1.03 * best);
  EXPECT_LT(ours, 0.95 * reference);
  for (size_t i = 0; i < 6; ++i) {  // zeros, equal numbers, a single one, an outlier: the scale's own rounding decides
    const Numbers& x = all.numbers[i];
    const double got = squared_error(x, values_of(WeightFormat::kQ4_0, quantised(WeightFormat::kQ4_0, x)));
    const double bound = squared_error(x, values_of(WeightFormat::kQ4_0, all.q4_0[i]));
    EXPECT_LE(got, 1.001 * bound + 1e-6 * squared_error(x, {})) << "block " << i;
  }
}

// What a block can hold comes back: with -8 or 7 of a scale of fp16 as the largest, of either sign.
TEST(Quantise, Q4_0KeepsWhatItCanHold) {
  std::mt19937 random(5);
  for (const float scale : {0.25F, -0.25F, 0.01F, 3.0F}) {
    for (const int largest : {-8, 7}) {
      Numbers x;
      const float exact = half_to_float(float_to_half(scale));
      for (float& v : x) v = exact * static_cast<float>(static_cast<int>(random() % 15) - 7);
      x[11] = exact * static_cast<float>(largest);
      EXPECT_EQ(values_of(WeightFormat::kQ4_0, quantised(WeightFormat::kQ4_0, x)), x) << scale << " " << largest;
    }
  }
}

TEST(Quantise, ZerosAndTinyNumbersAreZeros) {
  for (const float tiny : {0.0F, 1e-45F, -1e-38F, 1e-20F, -9e-8F}) {
    for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
      Numbers x = {};
      x[3] = tiny;
      for (float v : values_of(format, quantised(format, x))) EXPECT_EQ(v, 0) << tiny;
    }
  }
}

TEST(Quantise, ANumberThatIsNotFiniteMakesItsBlockNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
      Numbers x = {1, 2, 3};
      x[30] = bad;
      for (float v : values_of(format, quantised(format, x))) EXPECT_TRUE(std::isnan(v)) << bad;
    }
  }
  Numbers huge = {};
  huge[0] = 3e38F;  // beyond fp16 in any format
  for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0})
    EXPECT_FALSE(std::isfinite(values_of(format, quantised(format, huge))[0]));
}

TEST(Quantise, GivesTheSameBytesWhenDenormalsAreFlushed) {
  std::mt19937 random(9);
  std::vector<Numbers> blocks(2000);
  for (Numbers& x : blocks) {
    const int exponent = -static_cast<int>(random() % 149);
    for (float& v : x)
      v = std::ldexp(static_cast<float>(random() % 2001) / 1000 - 1, exponent - static_cast<int>(random() % 20));
  }
  std::vector<std::vector<std::byte>> plain, flushed;
  const auto all = [&](std::vector<std::vector<std::byte>>& out) {
    for (const Numbers& x : blocks)
      for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) out.push_back(quantised(format, x));
  };
  all(plain);
  std::thread([&] {
    set_flush_denormals();
    all(flushed);
  }).join();
  EXPECT_TRUE(plain == flushed);
}

}  // namespace
}  // namespace quire::weights
