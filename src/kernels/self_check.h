// The start-up comparisons of a table's kernels with the scalar ones, on small cases; gemm_self_check.h has the
// products' own.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

// kInternal, naming the kernel, if a bit differs. Call through self_test().
Result<void> attention_self_check(const KernelTable& table);
Result<void> row_ops_self_check(const KernelTable& table);
Result<void> scan_self_check(const KernelTable& table);
Result<void> gated_delta_self_check(const KernelTable& table);
Result<void> latent_self_check(const KernelTable& table);
Result<void> index_self_check(const KernelTable& table);

// What they share. Numbers between -2 and 2 from a fixed sequence.
std::vector<float> self_check_numbers(size_t n);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
std::unexpected<Error> differs(std::string_view kernel, const KernelTable& table);

}  // namespace quire::kernels
