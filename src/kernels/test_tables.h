// For tests: the kernel tables of every instruction set that this CPU and build have.
#pragma once

#include <vector>

#include "base/cpu.h"
#include "kernels/kernels.h"

namespace quire::kernels {

inline std::vector<KernelTable> test_tables() {
  std::vector<KernelTable> all;
  const CpuFeatures cpu = detect_cpu();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (auto table = kernel_table(isa, cpu)) all.push_back(*table);
  if (cpu.avx512_bf16) {  // AVX-512 of older CPUs
    CpuFeatures older = cpu;
    older.avx512_bf16 = older.amx_int8 = older.amx_bf16 = false;
    if (auto table = kernel_table(Isa::kAvx512, older)) all.push_back(*table);
  }
  return all;
}

}  // namespace quire::kernels
