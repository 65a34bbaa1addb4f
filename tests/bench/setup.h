// What the kernels' timings have in common: how they are called, and by which clock they go.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

struct BenchSetup {
  KernelTable table;
  int threads = 0;
  std::vector<std::string> wanted = {};  // whatever is no flag
};

// [NAME...] [--isa NAME] [--threads N] [--without-amx]
inline Result<BenchSetup> bench_setup(const std::vector<std::string>& args) {
  CpuFeatures cpu = detect_cpu();
  auto isa = choose_isa(cpu);
  BenchSetup setup{.table = {}, .threads = usable_cores()};
  for (size_t i = 0; i < args.size(); i++) {
    if (args[i] == "--isa" && i + 1 < args.size())
      isa = parse_isa(args[++i]);
    else if (args[i] == "--threads" && i + 1 < args.size())
      setup.threads = std::stoi(args[++i]);
    else if (args[i] == "--without-amx")
      cpu.amx_int8 = cpu.amx_bf16 = false;
    else
      setup.wanted.push_back(args[i]);
  }
  if (!isa) return std::unexpected(isa.error());
  auto table = kernel_table(*isa, cpu);
  if (!table) return std::unexpected(table.error());
  setup.table = *table;
  return setup;
}

// On one thread its own time counts, so that a busy machine disturbs less.
inline double seconds(bool own) {
  timespec now;
  clock_gettime(own ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace quire::kernels
