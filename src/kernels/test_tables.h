// For tests: the kernel tables of every instruction set that this CPU and build have.
#pragma once

#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/attention_kernels.h"
#include "kernels/gemm_kernels.h"
#include "kernels/kernels.h"

namespace quire::kernels {

inline std::vector<KernelTable> test_tables() {
  std::vector<KernelTable> all;
  const CpuFeatures cpu = detect_cpu();
  set_flush_denormals();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (auto table = kernel_table(isa, cpu)) all.push_back(*table);
#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)
  if (cpu.avx512_bf16 && vdpbf16ps_follows_rule_1()) {  // also where FMAs or AMX are faster
    KernelTable native = all.back();
    native.native_bf16 = true;
    native.gemm = &gemm_kernels_avx512_bf16();
    native.attention = &attention_kernels_avx512_bf16();
    native.wide_int8 = nullptr;
    native.wide_bf16 = nullptr;
    all.push_back(native);
  }
#endif
  if (cpu.avx512_bf16) {  // AVX-512 of older CPUs
    CpuFeatures older = cpu;
    older.avx512_bf16 = older.amx_int8 = older.amx_bf16 = false;
    if (auto table = kernel_table(Isa::kAvx512, older)) all.push_back(*table);
  }
  return all;
}

}  // namespace quire::kernels
