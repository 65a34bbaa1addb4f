// The kernels of scan_kernels.h for any sixteen lanes: include after a math_lanes.h.
#pragma once

#include "kernels/scan_kernels.h"
#include "kernels/shared/math_body.h"

namespace quire::kernels {
namespace {

constexpr int kLaneCount = Lanes::kCount;

// The last piece of a row, filled up with -inf: never above anything, nothing in a sum.
inline Lanes load_or_lowest(const float* p, int n) {
  if (n >= kLaneCount) return Lanes::load(p);
  return select(greater(LaneInts::set(n), LaneInts::iota(0)), Lanes::load_part(p, n), Lanes::set(-kInfinity));
}

// Every lane keeps its first greatest; of equal lanes the lowest id wins.
ScoredId scan_argmax(const float* x, int n) {
  Lanes best = Lanes::set(-kInfinity);
  LaneInts at = LaneInts::set(0);
  for (int i = 0; i < n; i += kLaneCount) {
    const Lanes v = load_or_lowest(x + i, n - i);
    const LaneMask better = greater(v, best);
    best = select(better, v, best);
    at = select(better, LaneInts::iota(i), at);
  }
  float value[kLaneCount];
  int32_t id[kLaneCount];
  best.store(value);
  at.store(id);
  ScoredId result = {id[0], value[0]};
  for (int lane = 1; lane < kLaneCount; lane++)
    if (value[lane] > result.value || (value[lane] == result.value && id[lane] < result.id))
      result = {id[lane], value[lane]};
  return result;
}

bool scan_has_nan(const float* x, int n) {
  for (int i = 0; i < n; i += kLaneCount) {
    const Lanes v = load_or_lowest(x + i, n - i);
    if (bits_of(greater_equal(v, v)) != 0xffffU) return true;
  }
  return false;
}

MaxSum max_sum(const float* x, int n) {
  Lanes peak = Lanes::set(-kInfinity);
  for (int i = 0; i < n; i += kLaneCount) peak = max(load_or_lowest(x + i, n - i), peak);
  const float top = max_of(peak);
  if (top == -kInfinity) return {top, 0};
  Lanes sum = Lanes::set(0);
  for (int i = 0; i < n; i += kLaneCount) sum = add(sum, exp_lanes(sub(load_or_lowest(x + i, n - i), Lanes::set(top))));
  return {top, tree_sum(sum)};
}

void scan_max_sum_blocks(const float* x, int n, MaxSum* blocks) {
  for (int i = 0; i < n; i += kScanBlock)
    blocks[i / kScanBlock] = max_sum(x + i, n - i < kScanBlock ? n - i : kScanBlock);
}

int scan_next_above(const float* x, int begin, int n, float threshold) {
  const Lanes t = Lanes::set(threshold);
  for (int i = begin; i < n; i += kLaneCount)
    if (const uint32_t bits = bits_of(greater(load_or_lowest(x + i, n - i), t)); bits != 0)
      return i + __builtin_ctz(bits);
  return n;
}

int scan_count_above(const float* x, int n, float threshold) {
  const Lanes t = Lanes::set(threshold);
  int count = 0;
  for (int i = 0; i < n; i += kLaneCount)
    count += __builtin_popcount(bits_of(greater(load_or_lowest(x + i, n - i), t)));
  return count;
}

constexpr ScanKernels kScanKernels = {scan_argmax, scan_has_nan, scan_max_sum_blocks, scan_next_above,
                                      scan_count_above};

}  // namespace
}  // namespace quire::kernels
