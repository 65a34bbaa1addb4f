// Times paged attention: attention_bench [prefill] [decode] [shared] [--isa NAME] [--without-amx].
//
// Prefill in GF/s of the visible keys; decode in GB/s of K and V, from caches that exceed the second level many times
// over. Every figure is the best of several rounds; behind it stands the share of what the peaks, probed at the start,
// allow. On one thread its own time counts, so that a busy machine disturbs less.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/cpu.h"
#include "kernels/attention.h"
#include "kernels/probe.h"
#include "kernels/roofline.h"
#include "setup.h"

namespace quire::kernels {
namespace {

constexpr int kRounds = 7;
constexpr size_t kCacheBytes = size_t{160} << 20;

constexpr int kThreads[] = {1, 2};

struct Machine {
  KernelTable table;
  MachinePeaks peaks[std::size(kThreads)];

  // In percent: what the peaks of kThreads[i] allow, by the time.
  double share(size_t i, const Work& work, double time) const { return 100 * roof_of(work, peaks[i]).seconds / time; }
};

struct Heads {
  int head_dim;
  int kv_heads;
  int group;
};
constexpr Heads kHeads[] = {{64, 3, 3}, {128, 8, 2}, {128, 4, 4}, {256, 1, 4}};

// Several layers' caches with cheap finite content and scattered pages.
class Bench {
 public:
  Bench(const KernelTable& table, const Heads& heads, int page, int window, int layer_pages, int layers)
      : table_(table), layers_(layers), pages_(static_cast<size_t>(layer_pages * layers)) {
    shape_ = {.q_heads = heads.kv_heads * heads.group,
              .kv_heads = heads.kv_heads,
              .head_dim = heads.head_dim,
              .page_tokens = page,
              .dtype = DType::kBF16,
              .window = window};
    view_.head_stride = kv_head_bytes(shape_.dtype, page, shape_.head_dim);
    view_.page_stride = view_.head_stride * static_cast<size_t>(shape_.kv_heads);
    view_.block_tokens = page;
    view_.pages_per_block = 1;
    memory_ = *allocator_.allocate(view_.page_stride * pages_.size());
    auto* words = reinterpret_cast<uint16_t*>(memory_.data());
    for (size_t i = 0; i < memory_.size() / 2; i++) words[i] = static_cast<uint16_t>(0x3c00 + (i & 127));
    view_.base = memory_.data();
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(3));
  }

  const AttentionShape& shape() const { return shape_; }
  const std::vector<int32_t>& pages() const { return pages_; }
  size_t row_bytes() const { return view_.page_stride / static_cast<size_t>(shape_.page_tokens); }

  // Best seconds of one layer; plan(layer) is built outside of the clock.
  template <class F>
  double best(int threads, int rows, F sequences) {
    const size_t width = static_cast<size_t>(shape_.q_heads * shape_.head_dim);
    std::vector<float> q(static_cast<size_t>(rows) * width), out(q.size());
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(rng);
    ThreadPool pool(threads);
    std::vector<AttentionPlan> plans(static_cast<size_t>(layers_));
    for (int l = 0; l < layers_; l++) plans[static_cast<size_t>(l)].build(table_, shape_, sequences(l), threads);
    AttentionWorkspace workspace;
    double best = 1e9;
    for (int round = 0; round < kRounds; round++) {
      const double start = seconds(threads == 1);
      for (const AttentionPlan& plan : plans)
        attend(table_, plan, view_,
               {.q = q.data(), .out = out.data(), .q_stride = width, .out_stride = width, .scale = 0.1F}, workspace,
               pool);
      best = std::min(best, (seconds(threads == 1) - start) / layers_);
    }
    return best;
  }

 private:
  KernelTable table_;
  int layers_;
  AttentionShape shape_;
  Allocator allocator_;
  Buffer memory_;
  KvView view_;
  std::vector<int32_t> pages_;
};

std::string name(const Heads& h) {
  return fmt::format("D={:<3} kv heads {} group {}", h.head_dim, h.kv_heads, h.group);
}

void prefill(const Machine& machine, const Heads& heads, int tokens, int window) {
  const int page = 64;
  Bench bench(machine.table, heads, page, window, tokens / page, 1);
  double seen = 0;
  for (int t = 0; t < tokens; t++) seen += window > 0 ? std::min(window, t + 1) : t + 1;
  const double operations = 4.0 * heads.head_dim * heads.kv_heads * heads.group * seen;
  const Unit unit = attention_unit(machine.table, DType::kBF16, tokens * heads.group);
  const Work work = {.operations = operations_of(unit, operations)};
  std::string line = fmt::format("prefill {} tokens {:4} window {:3} |", name(heads), tokens, window);
  for (size_t i = 0; i < std::size(kThreads); i++) {
    const int threads = kThreads[i];
    const double t = bench.best(threads, tokens, [&](int) {
      return std::vector<AttentionSequence>{{.pages = bench.pages(), .first_row = 0, .num_rows = tokens}};
    });
    line += fmt::format(" {} thread{} {:6.1f} GF/s ({:.0f}%)", threads, threads > 1 ? "s" : "", operations / t / 1e9,
                        machine.share(i, work, t));
  }
  fmt::print("{}\n", line);
}

void decode(const Machine& machine, const Heads& heads, int depth, int page) {
  const size_t bytes = static_cast<size_t>(depth * heads.head_dim * heads.kv_heads) * 4;
  const int layers = std::max(2, static_cast<int>(kCacheBytes / bytes)), layer_pages = (depth + page) / page;
  Bench bench(machine.table, heads, page, 0, layer_pages, layers);
  std::string line = fmt::format("decode  {} depth {:5} page {:2} |", name(heads), depth, page);
  for (size_t i = 0; i < std::size(kThreads); i++) {
    const int threads = kThreads[i];
    const double t = bench.best(threads, 1, [&](int layer) {
      return std::vector<AttentionSequence>{
          {.pages = std::span(bench.pages()).subspan(static_cast<size_t>(layer * layer_pages)),
           .first_row = 0,
           .num_rows = 1,
           .first_position = depth - 1}};
    });
    line += fmt::format(" {} thread{} {:5.1f} GB/s ({:.0f}%) {:7.1f} us", threads, threads > 1 ? "s" : "",
                        static_cast<double>(bytes) / t / 1e9,
                        machine.share(i, {.bytes = static_cast<double>(bytes)}, t), t * 1e6);
  }
  fmt::print("{}\n", line);
}

// 16 sequences over a common prefix, with its pages shared or copied.
void shared(const KernelTable& table, const Heads& heads) {
  constexpr int kSequences = 16, kPrefix = 1500, kLength = 1600, kPage = 64;
  const int all = (kLength + kPage - 1) / kPage, common = kPrefix / kPage;
  std::string line = fmt::format("shared  {} 16 x (1500 + 100), us a layer |", name(heads));
  for (const bool together : {false, true}) {
    const int layer_pages = together ? common + kSequences * (all - common) : kSequences * all;
    const size_t bytes = static_cast<size_t>(layer_pages * kPage * heads.head_dim * heads.kv_heads) * 4;
    const int layers = std::max(2, static_cast<int>(kCacheBytes / bytes));
    Bench bench(table, heads, kPage, 0, layer_pages, layers);
    std::vector<std::vector<int32_t>> tables;
    for (int layer = 0; layer < layers; layer++)
      for (int s = 0; s < kSequences; s++) {
        tables.emplace_back();
        for (int p = 0; p < all; p++) {
          const int own = together ? (p < common ? p : common + s * (all - common) + p - common) : s * all + p;
          tables.back().push_back(bench.pages()[static_cast<size_t>(layer * layer_pages + own)]);
        }
      }
    line += together ? " shared" : " apart";
    for (const int threads : kThreads) {
      const double t = bench.best(threads, kSequences, [&](int layer) {
        std::vector<AttentionSequence> sequences;
        for (int s = 0; s < kSequences; s++)
          sequences.push_back({.pages = tables[static_cast<size_t>(layer * kSequences + s)],
                               .first_row = s,
                               .num_rows = 1,
                               .first_position = kLength - 1});
        return sequences;
      });
      line += fmt::format(" {:6.0f}", t * 1e6);
    }
  }
  fmt::print("{}\n", line);
}

// Building a plan for 16 decodes, and writing new tokens.
void overheads(const KernelTable& table) {
  Bench bench(table, kHeads[0], 64, 0, 16 * 25, 1);
  std::vector<AttentionSequence> sequences;
  for (int s = 0; s < 16; s++)
    sequences.push_back({.pages = std::span(bench.pages()).subspan(static_cast<size_t>(s) * 25),
                         .first_row = s,
                         .num_rows = 1,
                         .first_position = 1599});
  AttentionPlan plan;
  const double start = seconds(true);
  for (int i = 0; i < 1000; i++) plan.build(table, bench.shape(), sequences, 2);
  fmt::print("plan of 16 decodes at 1600: {:.1f} us\n", (seconds(true) - start) * 1e3);
}

int main_of(const std::vector<std::string>& args) {
  const auto setup = bench_setup(args);
  if (!setup) {
    fmt::print(stderr, "{}\n", setup.error().message);
    return 2;
  }
  const KernelTable& table = setup->table;
  const auto& what = setup->wanted;
  Machine machine{.table = table, .peaks = {}};
  for (size_t i = 0; i < std::size(kThreads); i++) {
    ThreadPool pool(kThreads[i]);
    Allocator allocator;
    const auto peaks = probe_peaks(table, pool, allocator);
    if (!peaks) {
      fmt::print(stderr, "{}\n", peaks.error().message);
      return 2;
    }
    machine.peaks[i] = *peaks;
    fmt::print("peaks of {} thread{}: {}\n", kThreads[i], kThreads[i] > 1 ? "s" : "", describe(*peaks));
  }
  const auto wanted = [&](const char* name) { return what.empty() || std::ranges::find(what, name) != what.end(); };
  for (const Heads& heads : kHeads) {
    if (wanted("prefill"))
      for (const auto& [tokens, window] : {std::pair{512, 0}, {2048, 0}, {2048, 512}, {2048, 128}})
        prefill(machine, heads, tokens, window);
    if (wanted("decode"))
      for (const int depth : {512, 2048, 8192}) decode(machine, heads, depth, 64);
    if (wanted("shared")) shared(table, heads);
  }
  if (wanted("overheads")) overheads(table);
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::main_of({argv + 1, argv + argc}); }
