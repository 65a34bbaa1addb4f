// For tests: numbers in [-1, 1) that depend on the seed alone, the same with every standard library.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace quire::kernels {

inline std::vector<float> test_numbers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(random() >> 8) * 0x1p-23F - 1;
  return x;
}

}  // namespace quire::kernels
