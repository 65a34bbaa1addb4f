#include "kernels/scan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/math.h"

namespace quire::kernels {
namespace {

// The worse of two candidates sits on top of the heap.
bool better(const ScoredId& a, const ScoredId& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

}  // namespace

MaxSum merge(MaxSum lower, MaxSum higher) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (higher.max == kEmpty) return lower;
  if (lower.max == kEmpty) return higher;
  const float top = lower.max > higher.max ? lower.max : higher.max;
  return {top, std::fma(higher.sum, exp(higher.max - top), lower.sum * exp(lower.max - top))};
}

float log_sum_exp(const KernelTable& table, std::span<const float> x) {
  constexpr size_t kBlocksAtOnce = 64;
  MaxSum total = {-std::numeric_limits<float>::infinity(), 0};
  MaxSum blocks[kBlocksAtOnce];
  while (!x.empty()) {
    const size_t n = std::min(x.size(), kBlocksAtOnce * kScanBlock);
    table.scan->max_sum_blocks(x.data(), static_cast<int>(n), blocks);
    for (size_t b = 0; b * kScanBlock < n; b++) total = merge(total, blocks[b]);
    x = x.subspan(n);
  }
  return total.max + log(total.sum);
}

void top_n(const KernelTable& table, std::span<const float> x, std::span<ScoredId> best) {
  QUIRE_CHECK(best.size() <= x.size());
  if (best.empty()) return;
  const int n = static_cast<int>(x.size());
  const int first = static_cast<int>(best.size());
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < first; i++) {
    const float v = x[static_cast<size_t>(i)];
    best[static_cast<size_t>(i)] = {i, v >= kLowest ? v : kLowest};  // NaN counts as nothing
  }
  std::make_heap(best.begin(), best.end(), better);
  // Ids come ascending, so a later equal value never replaces an earlier one.
  for (int i = first;; i++) {
    i = table.scan->next_above(x.data(), i, n, best.front().value);
    if (i >= n) break;
    std::pop_heap(best.begin(), best.end(), better);
    best.back() = {i, x[static_cast<size_t>(i)]};
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
}

}  // namespace quire::kernels
