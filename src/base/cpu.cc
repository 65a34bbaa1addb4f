#include "base/cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/cgroup.h"
#include "base/topology.h"

namespace quire {
namespace {

// Of /proc/meminfo, whose lines are "MemAvailable:   23862104 kB"; 0 if it is not there.
size_t meminfo_bytes(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  size_t kibibytes = 0;
  for (std::string name, unit; in >> name >> kibibytes; std::getline(in, unit))
    if (name == key) return kibibytes * 1024;
  return 0;
}

CgroupLimits cgroups() { return read_cgroups("/proc/self/cgroup", "/sys/fs/cgroup"); }

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax, ebx, ecx, edx;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r{leaf, 0, subleaf, 0};
  asm volatile("cpuid" : "+a"(r.eax), "=b"(r.ebx), "+c"(r.ecx), "=d"(r.edx));
  return r;
}

// Tile state is large, so Linux switches it on only for processes that ask.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

}  // namespace

CpuFeatures detect_cpu() {
  CpuFeatures cpu;
#if defined(__x86_64__)
  __builtin_cpu_init();
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
  cpu.avx512_bf16 = cpu.avx512 && __builtin_cpu_supports("avx512bf16");
  cpu.avx_vnni = cpu.avx2 && (cpuid(7, 1).eax >> 4 & 1U) != 0;
  const unsigned amx = cpuid(7, 0).edx;
  const bool tiles = cpu.avx512 && (amx >> 24 & 1U) != 0 && may_use_tiles();
  cpu.amx_bf16 = tiles && (amx >> 22 & 1U) != 0;
  cpu.amx_int8 = tiles && (amx >> 25 & 1U) != 0;
#endif
  return cpu;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

Result<Isa> parse_isa(std::string_view name) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    if (name == name_of(isa)) return isa;
  return fail(ErrorKind::kInvalidRequest, "QUIRE_ISA=" + std::string(name) + " is unknown; use scalar, avx2 or avx512",
              "QUIRE_ISA");
}

Result<Isa> choose_isa([[maybe_unused]] const CpuFeatures& cpu) {
#if defined(QUIRE_SCALAR_ONLY)
  const Isa best = Isa::kScalar;
#else
  const Isa best = cpu.avx512 ? Isa::kAvx512 : cpu.avx2 ? Isa::kAvx2 : Isa::kScalar;
#endif
  const char* wanted = std::getenv("QUIRE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  auto isa = parse_isa(wanted);
  if (isa && *isa > best)
    return fail(ErrorKind::kUnsupported,
                "QUIRE_ISA=" + std::string(wanted) + " is more than this CPU or build has; its best is " +
                    std::string(name_of(best)),
                "QUIRE_ISA");
  return isa;
}

int usable_cores() {
  const int cores = count_cores(read_topology("/sys/devices/system", allowed_cpus()));
  return static_cast<int>(std::min(static_cast<size_t>(std::max(1, cores)), cgroups().cpus));
}

size_t available_memory() { return std::min(meminfo_bytes("MemAvailable:"), cgroups().memory); }

}  // namespace quire
