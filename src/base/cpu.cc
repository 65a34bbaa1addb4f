#include "base/cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "base/read_line.h"
#include "base/topology.h"

namespace quire {
namespace {

// The number at the start of `text`, or `otherwise` ("max", a missing file).
size_t number_or(std::string_view text, size_t otherwise) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : otherwise;
}

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// This process's cgroup directory (version 2), or an empty string.
std::string cgroup_directory() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  return {};
}

// Calls f(directory) for the cgroup of this process and each of its parents.
template <class F>
void for_each_cgroup(F&& f) {
  for (std::string dir = cgroup_directory(); dir.size() >= std::string_view("/sys/fs/cgroup").size();) {
    f(dir);
    dir = dir.substr(0, dir.rfind('/'));
  }
}

// The number behind `key` in a file of such lines; 0 if it is not there.
size_t stat_value(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return number_or(std::string_view(line).substr(key.size()), 0);
  return 0;
}

size_t meminfo_bytes(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t digit = line.find_first_of("0123456789");
    if (digit != std::string::npos) return number_or(std::string_view(line).substr(digit), 0) * 1024;
  }
  return 0;
}

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
  const auto cores = count_cores(read_topology("/sys/devices/system", allowed_cpus()));
  size_t count = std::max<size_t>(1, static_cast<size_t>(cores));
  for_each_cgroup([&](const std::string& dir) {
    std::istringstream line(read_line(dir + "/cpu.max"));
    std::string quota, period;
    line >> quota >> period;
    const size_t q = number_or(quota, kUnlimited), p = number_or(period, 0);
    if (q != kUnlimited && p > 0) count = std::min(count, std::max<size_t>(1, q / p));
  });
  return static_cast<int>(count);
}

size_t available_memory() {
  size_t free = meminfo_bytes("MemAvailable:");
  for_each_cgroup([&](const std::string& dir) {
    const size_t limit = number_or(read_line(dir + "/memory.max"), kUnlimited);
    if (limit == kUnlimited) return;
    const size_t charged = number_or(read_line(dir + "/memory.current"), 0);
    const size_t used = charged - std::min(charged, stat_value(dir + "/memory.stat", "inactive_file "));
    free = std::min(free, limit > used ? limit - used : 0);
  });
  return free;
}

}  // namespace quire
