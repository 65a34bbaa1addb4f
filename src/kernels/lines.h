// Memory of floats in whole cache lines, so that sixteen lanes never lie across two.
#pragma once

#include <cstddef>
#include <vector>

namespace quire::kernels {

inline constexpr int kLineFloats = 16;

struct alignas(64) Line {
  float of[kLineFloats];
};
using Lines = std::vector<Line>;

inline constexpr int rounded_to_lines(int n) { return (n + kLineFloats - 1) / kLineFloats * kLineFloats; }

inline float* floats(Lines& lines) { return reinterpret_cast<float*>(lines.data()); }
inline const float* floats(const Lines& lines) { return reinterpret_cast<const float*>(lines.data()); }

}  // namespace quire::kernels
