// Memory in whole cache lines, so that sixteen numbers never lie across two.
#pragma once

#include <cstddef>
#include <vector>

namespace quire::kernels {

inline constexpr int kLineFloats = 16;

struct alignas(64) Line {
  std::byte of[kLineFloats * sizeof(float)];
};
using Lines = std::vector<Line>;

inline constexpr int rounded_to_lines(int n) { return (n + kLineFloats - 1) / kLineFloats * kLineFloats; }

}  // namespace quire::kernels
