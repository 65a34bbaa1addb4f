// Rows that need not fill the last lanes: include after a math_lanes.h.
#pragma once

namespace quire::kernels {
namespace {

inline int up_to_lanes(int n) { return (n + Lanes::kCount - 1) / Lanes::kCount * Lanes::kCount; }

// The n numbers from p on, or the sixteen if there are more; lanes beyond are zero, and not touched in memory.
inline Lanes load_some(const float* p, int n) { return n >= Lanes::kCount ? Lanes::load(p) : Lanes::load_part(p, n); }
inline void store_some(Lanes x, float* p, int n) { n >= Lanes::kCount ? x.store(p) : x.store_part(p, n); }

}  // namespace
}  // namespace quire::kernels
