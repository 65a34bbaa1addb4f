// Scans over one row of logits: greatest, log-sum-exp, best few, rank.
//
// Same bits on every instruction set. Ties go to the lower id. Ids are 0..n-1, n >= 1. NaN never wins and counts as
// nothing; ask has_nan() where it matters. Short scans (argmax, rank, has_nan) are called straight from the table:
// table.scan->argmax(x, n). Safe from any thread.
#pragma once

#include <span>

#include "kernels/kernels.h"
#include "kernels/scan_kernels.h"

namespace quire::kernels {

// M' = max(M, m), sum' = fma(sum_m, e^(m - M'), sum_M * e^(M - M')); an empty side is the identity. Merge ascending.
MaxSum merge(MaxSum lower, MaxSum higher);

// log(sum of e^x), natural. Blocks ascending; ranks and threads that hold parts can merge the same pairs.
float log_sum_exp(const KernelTable& table, std::span<const float> x);

// The best.size() greatest, descending, ties ascending by id. best.size() <= x.size(). No full sort: a heap of the best
// so far, entered only by what is above its least.
void top_n(const KernelTable& table, std::span<const float> x, std::span<ScoredId> best);

}  // namespace quire::kernels
