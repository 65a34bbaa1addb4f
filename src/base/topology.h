// The topology of the CPUs that this process may use: which of them share a core, a last-level cache, a NUMA node; and
// which of them the workers of a ThreadPool are pinned to.
//
// Read from the files of Linux, which may say less or anything in a container: a CPU of which nothing is known is a
// core with a cache of its own, on node 0. Values and pure functions but for those that read; safe from any thread.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire {

// A CPU as Linux counts them: a hardware thread.
struct Cpu {
  int id = 0;
  int core = 0;   // the least id of those with which it shares a core; like that:
  int cache = 0;  // with which it shares the last-level cache
  int node = 0;   // NUMA node
  bool operator==(const Cpu&) const = default;
};

// "0-3,8": ids, in that order. kInvalidRequest names the piece at fault: not a range, not ascending, above what Linux
// can count, or a CPU for the second time.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

// CPUs that the calling thread may run on, ascending.
std::vector<int> allowed_cpus();
// What files under `root` ("/sys/devices/system") say of `cpus`, in their order.
std::vector<Cpu> read_topology(const std::filesystem::path& root, std::span<const int> cpus);

int count_cores(std::span<const Cpu> topology);

// A CPU for each of `threads` workers. "auto": of every core one, those of one node and cache next to each other and
// the largest such group first; second hardware threads of the cores when these are used up. Else a list, whose first
// ones are taken. kInvalidRequest, naming cpu_affinity, if there are not as many, or if one of the list is not in
// `topology`.
Result<std::vector<int>> place_workers(std::string_view affinity, int threads, std::span<const Cpu> topology);

// Pins the calling thread. False if the system refuses.
bool pin_thread(int cpu);

}  // namespace quire
