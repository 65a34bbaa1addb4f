#include "kernels/kernels.h"

#include <fmt/format.h>

#include "base/thread_pool.h"
#include "kernels/attention_kernels.h"
#include "kernels/gated_delta_kernels.h"
#include "kernels/gemm_kernels.h"
#include "kernels/gemm_self_check.h"
#include "kernels/index_kernels.h"
#include "kernels/latent_kernels.h"
#include "kernels/row_ops.h"
#include "kernels/scan_kernels.h"
#include "kernels/self_check.h"

namespace quire::kernels {
namespace {

#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)

bool native_bf16(const CpuFeatures& cpu) {
  set_flush_denormals();
  return cpu.avx512_bf16 && vdpbf16ps_follows_rule_1() && vdpbf16ps_is_faster();
}

Result<KernelTable> vector_table(Isa isa, const CpuFeatures& cpu) {
  if (isa == Isa::kAvx512 && cpu.avx512) {
    const bool native = native_bf16(cpu), amx = cpu.amx_bf16 && cpu.avx512_bf16;
    return KernelTable{
        .isa = isa,
        .native_bf16 = native,
        .gemm = native ? &gemm_kernels_avx512_bf16() : &gemm_kernels_avx512(),
        .unpacked_int8 = &unpacked_kernels_avx512(),
        .wide_int8 = cpu.amx_int8 ? &wide_kernels_amx() : nullptr,
        .wide_bf16 = cpu.amx_bf16 ? &wide_kernels_amx_bf16() : nullptr,
        .attention = amx      ? &attention_kernels_avx512_amx()
                     : native ? &attention_kernels_avx512_bf16()
                              : &attention_kernels_avx512(),
        .rows = &row_kernels_avx512(),
        .scan = &scan_kernels_avx512(),
        .gated_delta = &gated_delta_kernels_avx512(),
        .latent = amx ? &latent_kernels_avx512_amx() : &latent_kernels_avx512(),
        .index = &index_kernels_avx512(),
    };
  }
  if (isa == Isa::kAvx2 && cpu.avx2) {
    return KernelTable{
        .isa = isa,
        .native_bf16 = false,
        .gemm = cpu.avx_vnni ? &gemm_kernels_avx2_vnni() : &gemm_kernels_avx2(),
        .unpacked_int8 = cpu.avx_vnni ? &unpacked_kernels_avx2_vnni() : &unpacked_kernels_avx2(),
        .wide_int8 = nullptr,
        .wide_bf16 = nullptr,
        .attention = &attention_kernels_avx2(),
        .rows = &row_kernels_avx2(),
        .scan = &scan_kernels_avx2(),
        .gated_delta = &gated_delta_kernels_avx2(),
        .latent = &latent_kernels_avx2(),
        .index = &index_kernels_avx2(),
    };
  }
  return fail(ErrorKind::kUnsupported, fmt::format("this CPU has no {} instructions", name_of(isa)), "QUIRE_ISA");
}

#else

Result<KernelTable> vector_table(Isa isa, const CpuFeatures&) {
  return fail(ErrorKind::kUnsupported, fmt::format("this build has no {} kernels", name_of(isa)), "QUIRE_ISA");
}

#endif

}  // namespace

Result<KernelTable> kernel_table(Isa isa, const CpuFeatures& cpu) {
  if (isa != Isa::kScalar) return vector_table(isa, cpu);
  return KernelTable{.isa = isa,
                     .native_bf16 = false,
                     .gemm = &gemm_kernels_scalar(),
                     .unpacked_int8 = nullptr,
                     .wide_int8 = nullptr,
                     .wide_bf16 = nullptr,
                     .attention = &attention_kernels_scalar(),
                     .rows = &row_kernels_scalar(),
                     .scan = &scan_kernels_scalar(),
                     .gated_delta = &gated_delta_kernels_scalar(),
                     .latent = &latent_kernels_scalar(),
                     .index = &index_kernels_scalar()};
}

std::string describe(const KernelTable& table) {
  std::string text(name_of(table.isa));
#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)
  if (table.gemm == &gemm_kernels_avx2_vnni()) text += "+avx_vnni";
#endif
  if (table.native_bf16) text += "+avx512_bf16";
  if (table.wide_bf16 != nullptr) text += "+amx_bf16";
  if (table.wide_int8 != nullptr) text += "+amx_int8";
  return text;
}

Result<void> self_test(const KernelTable& table) {
  for (const auto check : {gemm_self_check, attention_self_check, row_ops_self_check, scan_self_check,
                           gated_delta_self_check, latent_self_check, index_self_check})
    if (auto ok = check(table); !ok) return ok;
  return {};
}

}  // namespace quire::kernels
