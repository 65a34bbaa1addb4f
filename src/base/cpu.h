// What the machine can do: instruction sets, the cores this process may use, and its memory limit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "quire/error.h"

namespace quire {

// Instruction sets with kernels of their own, in ascending order. Every one gives the same bits.
enum class Isa { kScalar, kAvx2, kAvx512 };

struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx_vnni = false;     // vpdpbusd on ymm
  bool avx512 = false;       // F, BW, VL, DQ and VNNI
  bool avx512_bf16 = false;  // vdpbf16ps
  bool amx_int8 = false;     // tiles of int8 beside AVX-512, and the kernel lets this process use them
  bool amx_bf16 = false;     // the same of bf16
};

// Asks the kernel for the use of AMX tiles, where the CPU has them; threads inherit it.
CpuFeatures detect_cpu();

std::string_view name_of(Isa isa);
// "scalar", "avx2" or "avx512".
Result<Isa> parse_isa(std::string_view name);
// The best instruction set of this CPU, or the one that QUIRE_ISA names (kUnsupported if the CPU lacks it).
Result<Isa> choose_isa(const CpuFeatures& cpu);

// Physical cores that affinity and the cgroup's CPU quota allow, at least 1.
int usable_cores();
// Bytes of memory that this process could still take: free memory, capped by the cgroup's limit.
size_t available_memory();

}  // namespace quire
