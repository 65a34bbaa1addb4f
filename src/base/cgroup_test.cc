#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace quire {
namespace {

// A tree of files as Linux shows them.
class Tree {
 public:
  Tree() : root_(std::filesystem::temp_directory_path() / ("quire_cgroup_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(root_);
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }
  CgroupLimits limits(const std::string& groups) const {
    write("groups", groups);
    return read_cgroups(root_ / "groups", root_ / "mount");
  }

 private:
  std::filesystem::path root_;
};

TEST(Cgroup, NothingSaidIsNothingLimited) {
  const Tree tree;
  for (const char* groups : {"", "0::/", "0::/a/b", "4:memory:/a\n1:cpu:/a", "nonsense", "::", "4:memory", "0::x"}) {
    SCOPED_TRACE(groups);
    EXPECT_EQ(tree.limits(groups).cpus, kUnlimited);
    EXPECT_EQ(tree.limits(groups).memory, kUnlimited);
  }
  tree.write("mount/a/memory.max", "max");
  tree.write("mount/a/cpu.max", "max 100000");
  tree.write("mount/memory/a/memory.limit_in_bytes", "none");
  tree.write("mount/cpu/a/cpu.cfs_quota_us", "-1");
  tree.write("mount/cpu/a/cpu.cfs_period_us", "100000");
  const CgroupLimits limits = tree.limits("0::/a\n4:memory:/a\n1:cpu,cpuacct:/a");
  EXPECT_EQ(limits.cpus, kUnlimited);
  EXPECT_EQ(limits.memory, kUnlimited);
}

TEST(Cgroup, TheLeastOfAGroupAndItsParentsHolds) {
  const Tree tree;
  tree.write("mount/a/memory.max", "1000");
  tree.write("mount/a/memory.current", "700");
  tree.write("mount/a/memory.stat", "anon 100\ninactive_file_x 9\ninactive_file 250");
  tree.write("mount/a/b/memory.max", "900");
  tree.write("mount/a/b/memory.current", "100");
  tree.write("mount/a/cpu.max", "350000 100000");
  tree.write("mount/a/b/cpu.max", "800000 100000");
  EXPECT_EQ(tree.limits("0::/a/b").memory, 1000U - (700 - 250));
  EXPECT_EQ(tree.limits("0::/a/b").cpus, 3U);
  EXPECT_EQ(tree.limits("0::/").memory, kUnlimited);
  tree.write("mount/a/b/memory.current", "2000");
  tree.write("mount/a/b/cpu.max", "50000 100000");
  EXPECT_EQ(tree.limits("0::/a/b").memory, 0U);
  EXPECT_EQ(tree.limits("0::/a/b").cpus, 1U);
}

TEST(Cgroup, VersionOneHasATreeForEachController) {
  const Tree tree;
  tree.write("mount/memory/a/memory.limit_in_bytes", "5000");
  tree.write("mount/memory/a/memory.usage_in_bytes", "3000");
  tree.write("mount/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1000");
  tree.write("mount/cpu/c/cpu.cfs_quota_us", "200000");
  tree.write("mount/cpu/c/cpu.cfs_period_us", "100000");
  const CgroupLimits limits = tree.limits("4:memory:/a/b\n3:cpuset:/z\n2:cpuacct,cpu:/c\n0::/");
  EXPECT_EQ(limits.memory, 3000U);
  EXPECT_EQ(limits.cpus, 2U);
}

// A container may see its own group as the root of the mount, under the name that it has outside.
TEST(Cgroup, TheMountItselfCounts) {
  const Tree tree;
  tree.write("mount/memory/memory.limit_in_bytes", "4096");
  EXPECT_EQ(tree.limits("4:memory:/docker/0123").memory, 4096U);
}

}  // namespace
}  // namespace quire
