// What the control groups of this process leave it of the machine: those of version 2, and of version 1 where the
// system has them. A group's limit holds for all below it, so every parent counts.
//
// Reads the files of Linux, which may be missing: what is not said is not limited. Safe from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>

namespace quire {

inline constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

struct CgroupLimits {
  size_t cpus = kUnlimited;    // whole ones that the quota pays for, at least 1
  size_t memory = kUnlimited;  // bytes that may still be taken; pages of files that nobody uses count as free
};

// `groups` lists the groups of a process ("/proc/self/cgroup"), `root` is where they are mounted ("/sys/fs/cgroup").
CgroupLimits read_cgroups(const std::filesystem::path& groups, const std::filesystem::path& root);

}  // namespace quire
