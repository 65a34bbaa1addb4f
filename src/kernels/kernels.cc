#include "kernels/kernels.h"

#include <fmt/format.h>

#include "kernels/gemm_kernels.h"
#include "kernels/gemm_self_test.h"
#include "kernels/row_ops.h"
#include "kernels/scan_kernels.h"

namespace quire::kernels {

Result<KernelTable> kernel_table(Isa isa, [[maybe_unused]] const CpuFeatures& cpu) {
  if (isa == Isa::kScalar) {
    return KernelTable{.isa = isa,
                       .native_bf16 = false,
                       .gemm = &gemm_kernels_scalar(),
                       .rows = &row_kernels_scalar(),
                       .scan = &scan_kernels_scalar()};
  }
  return fail(ErrorKind::kUnsupported, fmt::format("this CPU or build has no {} kernels", name_of(isa)), "QUIRE_ISA");
}

Result<void> self_test(const KernelTable& table) { return gemm_self_test(table); }

}  // namespace quire::kernels
