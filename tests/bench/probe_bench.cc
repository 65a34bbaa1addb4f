// What this machine gives at this moment, as JSON: probe_bench [THREADS].
//
// dram_gb_s: bytes read from memory, all threads together. vnni_tops: multiply-adds of vpdpbusd chains, two operations
// each, 0 without AVX-512 VNNI. amx: whether the kernel lets programs use AMX.
#include <fmt/format.h>

#include <cstdlib>

#include "base/cpu.h"
#include "kernels/probe.h"

namespace quire::kernels {
namespace {

Result<void> probe(int threads) {
  const CpuFeatures cpu = detect_cpu();
  auto table = kernel_table(cpu.avx512 ? Isa::kAvx512 : Isa::kScalar, cpu);
  if (!table) return std::unexpected(table.error());
  ThreadPool pool(threads);
  Allocator allocator;
  const auto peaks = probe_peaks(*table, pool, allocator);
  if (!peaks) return std::unexpected(peaks.error());
  fmt::print("{{\"dram_gb_s\": {:.2f}, \"vnni_tops\": {:.3f}, \"amx\": {}}}\n", peaks->bytes / 1e9,
             peaks->operations[static_cast<size_t>(Unit::kInt8)] / 1e12, cpu.amx_int8 || cpu.amx_bf16);
  return {};
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (threads < 1 || threads > 1024) {
    fmt::print(stderr, "usage: probe_bench [THREADS]\n");
    return 2;
  }
  if (auto done = quire::kernels::probe(threads); !done) {
    fmt::print(stderr, "error: {}\n", done.error().message);
    return 1;
  }
}
