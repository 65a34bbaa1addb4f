#include "base/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/read_line.h"

namespace quire {
namespace {

// The number that the text is, or `otherwise`: "max", -1, nothing.
size_t number_or(std::string_view text, size_t otherwise) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : otherwise;
}

size_t number_in(const std::filesystem::path& file, size_t otherwise) { return number_or(read_line(file), otherwise); }

// The number behind `key` in a file of such lines; 0 if it is not there.
size_t stat_value(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return number_or(std::string_view(line).substr(key.size() + 1), 0);
  return 0;
}

// How a version calls what is read here.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* idle_files;  // in memory.stat: with all groups below
};
constexpr MemoryFiles kMemoryV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr MemoryFiles kMemoryV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

void limit_memory(const std::filesystem::path& group, const MemoryFiles& files, CgroupLimits& limits) {
  const size_t limit = number_in(group / files.limit, kUnlimited);
  if (limit == kUnlimited) return;
  const size_t charged = number_in(group / files.used, 0);
  const size_t used = charged - std::min(charged, stat_value(group / "memory.stat", files.idle_files));
  limits.memory = std::min(limits.memory, limit - std::min(limit, used));
}

// Both in microseconds.
void limit_cpus(size_t quota, size_t period, CgroupLimits& limits) {
  if (quota != kUnlimited && period > 0) limits.cpus = std::min(limits.cpus, std::max<size_t>(1, quota / period));
}

void limit_cpus_v2(const std::filesystem::path& group, CgroupLimits& limits) {
  std::istringstream line(read_line(group / "cpu.max"));
  std::string quota, period;
  line >> quota >> period;
  limit_cpus(number_or(quota, kUnlimited), number_or(period, 0), limits);
}

void limit_cpus_v1(const std::filesystem::path& group, CgroupLimits& limits) {
  limit_cpus(number_in(group / "cpu.cfs_quota_us", kUnlimited), number_in(group / "cpu.cfs_period_us", 0), limits);
}

// Calls f(folder) for the group "/a/b" below `mount` and its parents. In a container the group's own folder may be
// mounted as the root: then it is there that the limits stand.
template <class F>
void for_each_group(const std::filesystem::path& mount, std::string_view group, F&& f) {
  while (!group.empty() && group != "/") {
    f(mount / group.substr(1));
    group = group.substr(0, group.rfind('/'));
  }
  f(mount);
}

bool names(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == controller) return true;
    controllers = comma == std::string_view::npos ? std::string_view() : controllers.substr(comma + 1);
  }
  return false;
}

}  // namespace

CgroupLimits read_cgroups(const std::filesystem::path& groups, const std::filesystem::path& root) {
  CgroupLimits limits;
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {  // "4:cpu,cpuacct:/a/b", of version 2 "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (!group.starts_with('/')) continue;
    if (controllers.empty()) {
      for_each_group(root, group, [&](const std::filesystem::path& folder) {
        limit_memory(folder, kMemoryV2, limits);
        limit_cpus_v2(folder, limits);
      });
    }
    if (names(controllers, "memory"))
      for_each_group(root / "memory", group,
                     [&](const std::filesystem::path& folder) { limit_memory(folder, kMemoryV1, limits); });
    if (names(controllers, "cpu"))
      for_each_group(root / "cpu", group, [&](const std::filesystem::path& folder) { limit_cpus_v1(folder, limits); });
  }
  return limits;
}

}  // namespace quire
