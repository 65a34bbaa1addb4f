// The KernelTable names the compute kernels of one instruction set; everything above this room calls through it.
//
// Every instruction set gives the same bits (docs/determinism.md), so the choice is one of speed alone. A table is a
// value of pointers to constant data: copy it, share it between threads. All kernels expect flush-to-zero and
// denormals-are-zero in the calling thread (ThreadPool sets them).
#pragma once

#include <string>

#include "base/cpu.h"
#include "quire/error.h"

namespace quire::kernels {

struct GemmKernels;        // gemm_kernels.h
struct PanelKernels;       // gemm_kernels.h
struct WidePanelKernels;   // gemm_kernels.h
struct AttentionKernels;   // attention_kernels.h
struct RowKernels;         // row_ops.h
struct ScanKernels;        // scan_kernels.h
struct GatedDeltaKernels;  // gated_delta_kernels.h
struct LatentKernels;      // latent_kernels.h
struct IndexKernels;       // index_kernels.h

struct KernelTable {
  Isa isa = Isa::kScalar;
  bool native_bf16 = false;  // bf16 products by vdpbf16ps instead of two FMAs
  const GemmKernels* gemm = nullptr;
  const PanelKernels* unpacked_int8 = nullptr;  // products of several tiles; null if there are none
  const PanelKernels* wide_int8 = nullptr;      // products of several rows by AMX; null without it
  const WidePanelKernels* wide_bf16 = nullptr;
  const AttentionKernels* attention = nullptr;
  const RowKernels* rows = nullptr;
  const ScanKernels* scan = nullptr;
  const GatedDeltaKernels* gated_delta = nullptr;
  const LatentKernels* latent = nullptr;
  const IndexKernels* index = nullptr;
};

// The kernels of `isa` on a CPU with these features; vdpbf16ps only where it is seen to compute what rule 1 says, and
// faster than FMAs. kUnsupported if the CPU or this build lacks the instruction set.
Result<KernelTable> kernel_table(Isa isa, const CpuFeatures& cpu);

// The instruction set and what its kernels use beyond it, as Linux names them: "avx512+amx_bf16+amx_int8".
std::string describe(const KernelTable& table);

// Runs small cases of every kernel in the table against the scalar ones and compares all bits. kInternal, naming the
// kernel, if one differs. Takes a few milliseconds; meant for start-up.
Result<void> self_test(const KernelTable& table);

}  // namespace quire::kernels
