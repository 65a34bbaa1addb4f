// Topologies against trees of files as machines have them, and wrong ones.
#include "base/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <thread>

#include "base/thread_pool.h"

namespace quire {
namespace {

using Files = std::map<std::string, std::string>;

class Tree {
 public:
  explicit Tree(const Files& files) {
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories((root_ / name).parent_path());
      std::ofstream(root_ / name) << text << "\n";
    }
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  const std::filesystem::path& root() const { return root_; }

 private:
  static std::filesystem::path make() {
    std::string name = (std::filesystem::temp_directory_path() / "quire-topology-XXXXXX").string();
    return mkdtemp(name.data());
  }
  std::filesystem::path root_ = make();
};

// Two sockets of two cores with two threads each, counted as Linux does on servers: threads of a core are 4 apart.
Files two_sockets() {
  Files files;
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4, socket = core / 2;
    const std::string folder = "cpu/cpu" + std::to_string(cpu);
    files[folder + "/topology/thread_siblings_list"] = std::to_string(core) + "," + std::to_string(core + 4);
    files[folder + "/cache/index0/level"] = "1";
    files[folder + "/cache/index0/shared_cpu_list"] = std::to_string(core) + "," + std::to_string(core + 4);
    files[folder + "/cache/index3/level"] = "3";
    files[folder + "/cache/index3/shared_cpu_list"] = socket == 0 ? "0-1,4-5" : "2-3,6-7";
  }
  files["node/node0/cpulist"] = "0-1,4-5";
  files["node/node1/cpulist"] = "2-3,6-7";
  return files;
}

std::vector<int> first(int count) {
  std::vector<int> cpus(static_cast<size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(Topology, ReadsCoresCachesAndNodes) {
  const Tree tree(two_sockets());
  const auto topology = read_topology(tree.root(), first(8));
  const std::vector<Cpu> expected = {{0, 0, 0, 0}, {1, 1, 0, 0}, {2, 2, 2, 1}, {3, 3, 2, 1},
                                     {4, 0, 0, 0}, {5, 1, 0, 0}, {6, 2, 2, 1}, {7, 3, 2, 1}};
  EXPECT_EQ(topology, expected);
  EXPECT_EQ(count_cores(topology), 4);
  EXPECT_EQ(count_cores(read_topology(tree.root(), std::vector{0, 4, 6})), 2);
}

TEST(Topology, UnknownOrWrongFilesMakeEachCpuItsOwnCore) {
  const std::vector<Cpu> alone = {{0, 0, 0, 0}, {1, 1, 1, 0}};
  EXPECT_EQ(read_topology("/nowhere", first(2)), alone);
  for (const char* wrong : {"", "x", "0-", "-1", "1-0", "0-99999999999", "0,,1", "5", "0 1", "\xff", "0-1;rm"}) {
    SCOPED_TRACE(wrong);
    Files files;
    for (const char* cpu : {"cpu0", "cpu1"}) {
      const std::string folder = std::string("cpu/") + cpu;
      files[folder + "/topology/thread_siblings_list"] = wrong;
      files[folder + "/cache/index0/level"] = "3";
      files[folder + "/cache/index0/shared_cpu_list"] = wrong;
      files[folder + "/cache/index1/level"] = wrong;
      files[folder + "/cache/index1/shared_cpu_list"] = "0-1";
    }
    files["node/node3/cpulist"] = wrong;
    auto topology = read_topology(Tree(files).root(), first(2));
    // "5" is a level, and the list of it a good one.
    if (std::string_view(wrong) == "5")
      for (Cpu& cpu : topology) cpu.cache = cpu.id;
    EXPECT_EQ(topology, alone);
  }
}

TEST(Topology, ListsAreReadAndWrongOnesRefused) {
  EXPECT_EQ(*parse_cpu_list("0"), std::vector{0});
  EXPECT_EQ(*parse_cpu_list("8,0-2"), (std::vector{8, 0, 1, 2}));
  EXPECT_EQ(parse_cpu_list("0-1023")->size(), 1024U);
  for (const char* wrong : {"", ",", "1,", "a", "-1", "1-", "3-1", "0-1024", "99999999999999999999", "1-2-3", "0x1",
                            "+1", " 1", "1 ", "1.5", "0,0", "0-2,1", "auto", "0-3:2"}) {
    const auto list = parse_cpu_list(wrong);
    ASSERT_FALSE(list) << wrong;
    EXPECT_EQ(list.error().kind, ErrorKind::kInvalidRequest);
    EXPECT_EQ(list.error().param, "cpu_affinity");
  }
}

TEST(Topology, WorkersTakeCoresOfOneCacheFirst) {
  const Tree tree(two_sockets());
  const auto all = read_topology(tree.root(), first(8));
  EXPECT_EQ(*place_workers("auto", 4, all), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(*place_workers("auto", 6, all), (std::vector{0, 1, 2, 3, 4, 5}));
  // Where the first socket has one core left, two threads go to the second.
  const auto some = read_topology(tree.root(), std::vector{0, 2, 3, 4, 6, 7});
  EXPECT_EQ(*place_workers("auto", 2, some), (std::vector{2, 3}));
  EXPECT_EQ(*place_workers("auto", 4, some), (std::vector{2, 3, 0, 6}));
  EXPECT_FALSE(place_workers("auto", 7, some));
}

TEST(Topology, ListsPlaceWorkersInTheirOrder) {
  const auto topology = read_topology("/nowhere", std::vector{0, 1, 5});
  EXPECT_EQ(*place_workers("5,0", 2, topology), (std::vector{5, 0}));
  EXPECT_EQ(*place_workers("5,0", 1, topology), std::vector{5});
  for (const auto& [list, threads, word] :
       {std::tuple{"0-1", 3, "3 threads"}, {"0-2", 2, "CPU 2"}, {"", 1, "list like"}, {"0,0", 1, "twice"}}) {
    const auto placed = place_workers(list, threads, topology);
    ASSERT_FALSE(placed) << list;
    EXPECT_NE(placed.error().message.find(word), std::string::npos) << placed.error().message;
  }
}

TEST(Topology, PinnedWorkersRunWhereTheyShould) {
  const auto cpus = allowed_cpus();
  const int last = cpus.back();
  ThreadPool pool(std::vector{last, last});
  std::thread([&] {
    pool.pin_caller();
    EXPECT_EQ(allowed_cpus(), std::vector{last});
    std::atomic<int> elsewhere = 0;
    for (int i = 0; i < 100; ++i) pool.run([&](int) { elsewhere += sched_getcpu() != last; });
    EXPECT_EQ(elsewhere, 0);
  }).join();
  EXPECT_EQ(allowed_cpus(), cpus);  // nobody else's threads
}

}  // namespace
}  // namespace quire
