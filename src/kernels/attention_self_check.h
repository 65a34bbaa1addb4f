// The start-up comparison of a table's attention, row and scan kernels with the scalar ones.
#pragma once

#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

// kInternal, naming the kernel, if a bit differs. Call through self_test().
Result<void> attention_self_check(const KernelTable& table);
Result<void> row_ops_self_check(const KernelTable& table);

}  // namespace quire::kernels
