#include "base/topology.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "base/read_line.h"
#include "base/utf8.h"

namespace quire {
namespace {

constexpr std::string_view kParam = "cpu_affinity";
constexpr int kMostIndices = 16;  // of caches of one CPU
constexpr int kMostNodes = 1024;

std::unexpected<Error> refuse(const std::string& message) {
  return fail(ErrorKind::kInvalidRequest, "cpu_affinity: " + message, std::string(kParam));
}

// A CPU's number, in plain digits.
std::optional<int> parse_cpu(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= CPU_SETSIZE)
    return std::nullopt;
  return value;
}

// The least of a file's list, if that says something of `cpu`.
std::optional<int> least_of(const std::filesystem::path& path, int cpu) {
  const auto list = parse_cpu_list(read_line(path));
  if (!list || std::ranges::find(*list, cpu) == list->end()) return std::nullopt;
  return std::ranges::min(*list);
}

// The cache of the highest level.
std::optional<int> last_cache(const std::filesystem::path& folder, int cpu) {
  std::optional<int> found;
  int highest = 0;
  for (int i = 0; i < kMostIndices; ++i) {
    const auto index = folder / ("index" + std::to_string(i));
    const auto level = parse_cpu(read_line(index / "level"));
    if (!level || *level <= highest) continue;
    if (const auto least = least_of(index / "shared_cpu_list", cpu)) {
      highest = *level;
      found = least;
    }
  }
  return found;
}

}  // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  std::set<int> seen;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view piece = text.substr(at, end - at);
    const size_t dash = piece.find('-');
    const auto first = parse_cpu(piece.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_cpu(piece.substr(dash + 1));
    if (!first || !last || *last < *first)
      return refuse(in_quotes(piece) + " is neither a CPU below " + std::to_string(CPU_SETSIZE) +
                    " nor a range of them; write a list like 0-3,8");
    for (int cpu = *first; cpu <= *last; ++cpu) {
      if (!seen.insert(cpu).second) return refuse("CPU " + std::to_string(cpu) + " is there twice");
      cpus.push_back(cpu);
    }
    at = end + 1;
  }
  return cpus;
}

std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {0};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

std::vector<Cpu> read_topology(const std::filesystem::path& root, std::span<const int> cpus) {
  std::map<int, int> nodes;
  for (int node = 0; node < kMostNodes; ++node) {
    const std::string line = read_line(root / "node" / ("node" + std::to_string(node)) / "cpulist");
    if (const auto list = parse_cpu_list(line); !line.empty() && list)
      for (const int cpu : *list) nodes.emplace(cpu, node);
  }
  std::vector<Cpu> topology;
  for (const int cpu : cpus) {
    const auto folder = root / "cpu" / ("cpu" + std::to_string(cpu));
    const auto node = nodes.find(cpu);
    topology.push_back({.id = cpu,
                        .core = least_of(folder / "topology" / "thread_siblings_list", cpu).value_or(cpu),
                        .cache = last_cache(folder / "cache", cpu).value_or(cpu),
                        .node = node == nodes.end() ? 0 : node->second});
  }
  return topology;
}

int count_cores(std::span<const Cpu> topology) {
  std::set<int> cores;
  for (const Cpu& cpu : topology) cores.insert(cpu.core);
  return static_cast<int>(cores.size());
}

Result<std::vector<int>> place_workers(std::string_view affinity, int threads, std::span<const Cpu> topology) {
  std::vector<int> cpus;
  if (affinity == "auto") {
    std::map<std::pair<int, int>, int> sizes;  // cores of each node and cache
    std::map<int, int> earlier;                // hardware threads of a core that came before
    std::set<int> cores;
    for (const Cpu& cpu : topology)
      if (cores.insert(cpu.core).second) ++sizes[{cpu.node, cpu.cache}];
    using Place = std::tuple<int, int, int, int, int, int>;
    std::vector<Place> places;
    for (const Cpu& cpu : topology)
      places.emplace_back(earlier[cpu.core]++, -sizes[{cpu.node, cpu.cache}], cpu.node, cpu.cache, cpu.core, cpu.id);
    std::ranges::sort(places);
    for (const Place& place : places) cpus.push_back(std::get<5>(place));
  } else {
    auto list = parse_cpu_list(affinity);
    if (!list) return list;
    for (const int cpu : *list)
      if (std::ranges::find(topology, cpu, &Cpu::id) == topology.end())
        return refuse("CPU " + std::to_string(cpu) + " is not one that this process may use");
    cpus = std::move(*list);
  }
  if (static_cast<size_t>(threads) > cpus.size())
    return refuse(std::to_string(threads) + " threads need as many CPUs, not " + std::to_string(cpus.size()));
  cpus.resize(static_cast<size_t>(threads));
  return cpus;
}

bool pin_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

}  // namespace quire
