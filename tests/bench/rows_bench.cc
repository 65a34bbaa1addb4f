// Times what stands between the matrix products, kernel by kernel: rows_bench [NAME...] [--isa NAME] [--threads
// N] [--without-amx].
//
// Each figure is the best of several rounds over rows that the second-level cache holds, but for caches of keys, states
// and latents, which come from memory. Behind it stands the share of what the peaks, probed at the start, allow.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/latent_attention.h"
#include "kernels/pooled_index.h"
#include "kernels/probe.h"
#include "kernels/roofline.h"
#include "kernels/rope.h"
#include "kernels/row_ops.h"
#include "kernels/scan.h"
#include "setup.h"

namespace quire::kernels {
namespace {

constexpr int kRounds = 9;
constexpr int kRows = 32;
constexpr int kWidth = 2048;
constexpr double kFloat = sizeof(float);

std::vector<float> random_floats(size_t count) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(rng);
  return x;
}

Work on_rows(double bytes, double operations) {
  return {.cached_bytes = bytes, .operations = operations_of(Unit::kF32, operations)};
}

Work in_memory(double bytes, double operations) {
  return {.bytes = bytes, .operations = operations_of(Unit::kF32, operations)};
}

class Bench {
 public:
  Bench(const KernelTable& table, ThreadPool& pool, const MachinePeaks& peaks, std::vector<std::string> wanted)
      : table_(table), pool_(pool), peaks_(peaks), wanted_(std::move(wanted)) {}

  void all() {
    if (wants("norm")) norm();
    if (wants("ready")) ready();
    if (wants("rope")) rope();
    if (wants("activation")) activation();
    if (wants("scan")) scan();
    if (wants("write")) write();
    if (wants("gated_delta")) gated_delta_rule();
    if (wants("latent")) latent();
    if (wants("index")) index();
  }

 private:
  bool wants(std::string_view name) const {
    return wanted_.empty() || std::ranges::find(wanted_, name) != wanted_.end();
  }

  // `run` does the work `count` times.
  void time(const std::string& name, const Work& work, int count, const std::function<void()>& run) {
    double best = INFINITY;
    for (int round = 0; round < kRounds; round++) {
      const double start = seconds(pool_.size() == 1);
      run();
      best = std::min(best, (seconds(pool_.size() == 1) - start) / count);
    }
    const Roof roof = roof_of(work, peaks_);
    fmt::print("{:<54}{:>10.2f} us{:>8.1f} GB/s{:>8.1f} Gop/s{:>6.0f}% of {}\n", name, best * 1e6,
               work.all_bytes() / best / 1e9, work.all_operations() / best / 1e9, 100 * roof.seconds / best,
               name_of(roof.bound));
    std::fflush(stdout);
  }

  // f(begin, end) on the rows, often enough for a clock to see.
  template <class F>
  void time_rows(const std::string& name, const Work& work, F f, int rows = kRows) {
    constexpr int kTimes = 50;
    time(name, work, kTimes, [&] {
      for (int i = 0; i < kTimes; i++) pool_.split(rows, f);
    });
  }

  void norm() {
    const auto x = random_floats(kRows * kWidth), w = random_floats(kWidth);
    std::vector<float> y(x.size());
    const double numbers = kRows * kWidth;
    time_rows(
        fmt::format("norm, {} x {}", kRows, kWidth), on_rows(2 * numbers * kFloat, 4 * numbers),
        [&](int begin, int end) {
          const size_t at = static_cast<size_t>(begin) * kWidth;
          table_.rows->rms_norm({x.data() + at, kWidth, w.data(), 1e-6F, end - begin, kWidth, y.data() + at, kWidth});
        });
  }

  void ready() {
    const auto x = random_floats(kRows * kWidth);
    const struct {
      const char* name;
      ActivationKind kind;
      double bytes;  // of a number
    } kinds[] = {{"int8", ActivationKind::kInt8, static_cast<double>(kGroupRowBytes) / kGroup},
                 {"bf16", ActivationKind::kBF16, 2}};
    for (const auto& [name, kind, bytes] : kinds) {
      Activations a;
      if (!a.reserve(kRows, kWidth, allocator_)) return;
      a.reshape(table_, kind, kRows, kWidth);
      const double numbers = kRows * kWidth;
      time_rows(fmt::format("rows to {}, {} x {}", name, kRows, kWidth),
                on_rows(numbers * (kFloat + bytes), 2 * numbers),
                [&](int begin, int end) { a.set_rows(table_, x.data(), kWidth, begin, end); });
    }
  }

  void rope() {
    constexpr int kHeads = 16, kDim = 128, kPositions = 4096;
    auto rope = RopeTable::make({.theta = 1e4, .rotary_dim = kDim}, kPositions, allocator_);
    if (!rope) return;
    rope->prepare(kPositions, pool_);
    auto x = random_floats(kRows * kHeads * kDim);
    const double numbers = static_cast<double>(x.size());
    time_rows(fmt::format("rope, {} x {} heads of {}", kRows, kHeads, kDim), on_rows(2 * numbers * kFloat, 3 * numbers),
              [&](int begin, int end) {
                for (int r = begin; r < end; r++)
                  apply_rope(table_, *rope, 1000 + r, x.data() + static_cast<size_t>(r) * kHeads * kDim, kHeads, kDim);
              });
  }

  void activation() {
    const auto gate = random_floats(kRows * kWidth), up = random_floats(kRows * kWidth);
    std::vector<float> y(gate.size());
    const double numbers = kRows * kWidth;
    const std::pair<const char*, decltype(table_.rows->silu_mul)> kinds[] = {{"silu_mul", table_.rows->silu_mul},
                                                                             {"gelu_mul", table_.rows->gelu_tanh_mul}};
    for (const auto& [name, run] : kinds)
      time_rows(fmt::format("{}, {} x {}", name, kRows, kWidth), on_rows(3 * numbers * kFloat, 5 * numbers),
                [&](int begin, int end) {
                  const size_t at = static_cast<size_t>(begin) * kWidth;
                  run(gate.data() + at, up.data() + at, (end - begin) * kWidth, y.data() + at);
                });
  }

  void scan() {
    constexpr size_t kVocabulary = 49152;
    constexpr int kLogitsRows = 4;
    const auto logits = random_floats(kLogitsRows * kVocabulary);
    std::vector<float> results(kLogitsRows);
    const double numbers = static_cast<double>(logits.size());
    const auto row = [&](int r) {
      return std::span(logits).subspan(static_cast<size_t>(r) * kVocabulary, kVocabulary);
    };
    const std::string shape = fmt::format(", {} x {}", kLogitsRows, kVocabulary);
    time_rows(
        "argmax" + shape, on_rows(numbers * kFloat, numbers),
        [&](int begin, int end) {
          for (int r = begin; r < end; r++)
            results[static_cast<size_t>(r)] = static_cast<float>(table_.scan->argmax(row(r).data(), kVocabulary).id);
        },
        kLogitsRows);
    time_rows(
        "log_sum_exp" + shape, on_rows(numbers * kFloat, 4 * numbers),
        [&](int begin, int end) {
          for (int r = begin; r < end; r++) results[static_cast<size_t>(r)] = log_sum_exp(table_, row(r));
        },
        kLogitsRows);
  }

  void write() {
    constexpr int kHeads = 8, kDim = 128, kPage = 32, kTokens = 1024;
    const auto k = random_floats(size_t{kTokens} * kHeads * kDim);
    for (const DType dtype : {DType::kBF16, DType::kI8}) {
      const AttentionShape shape{
          .q_heads = kHeads, .kv_heads = kHeads, .head_dim = kDim, .page_tokens = kPage, .dtype = dtype};
      KvView view;
      view.head_stride = (kv_head_bytes(dtype, kPage, kDim) + 63) / 64 * 64;
      view.page_stride = view.head_stride * kHeads;
      view.block_tokens = kPage;
      view.pages_per_block = 1;
      const auto memory = *allocator_.allocate(view.page_stride * kTokens / kPage);
      view.base = memory.data();
      std::vector<int64_t> slots(kTokens);
      std::iota(slots.begin(), slots.end(), 0);
      const double numbers = 2.0 * static_cast<double>(k.size());
      Work work = in_memory(static_cast<double>(kv_head_bytes(dtype, 1, kDim)) * kHeads * kTokens, 2 * numbers);
      work += on_rows(numbers * kFloat, 0);
      constexpr size_t kStride = kHeads * kDim;
      time(fmt::format("kv write {}, {} x {} heads of {}", name_of(dtype), kTokens, kHeads, kDim), work, 1,
           [&] { write_kv(table_, shape, view, {slots, k.data(), k.data(), kStride, kStride}, pool_); });
    }
  }

  // Heads decay as a whole, or channels by numbers of their own.
  void gated_delta_rule() {
    for (const float decay_floor : {0.0F, -5.0F})
      for (const auto& [sequences, tokens] : {std::pair{1, 64}, {16, 1}})
        gated_delta_rule(decay_floor, sequences, tokens);
  }

  void gated_delta_rule(float decay_floor, int sequences, int tokens) {
    const GatedDeltaShape shape{
        .heads = 16, .key_heads = 16, .key_dim = 128, .value_dim = 128, .conv_width = 4, .decay_floor = decay_floor};
    const auto conv = random_floats(static_cast<size_t>(shape.channels() * shape.conv_width));
    const std::vector<float> rate(16, 1), bias(static_cast<size_t>(shape.decays()), 0);
    const size_t state = gated_delta_state_size(shape);
    const auto stride = static_cast<size_t>(shape.channels() + shape.decays() + shape.heads);
    const auto x = random_floats(static_cast<size_t>(sequences * tokens) * stride);
    std::vector<float> out(static_cast<size_t>(sequences * tokens * shape.value_rows()));
    std::vector<float> states(state * static_cast<size_t>(sequences));
    std::vector<GatedDeltaSequence> list;
    for (int s = 0; s < sequences; s++) {
      float* own = states.data() + static_cast<size_t>(s) * state;
      list.push_back({.from = own, .to = own, .first_row = s * tokens, .num_rows = tokens});
    }
    const double rows = sequences * tokens;
    const double operations = 7.0 * shape.heads * shape.key_dim * shape.value_dim + 2.0 * shape.channels() * 4;
    time(fmt::format("gated delta{}, {} x {} tokens, 16 of 128 x 128", shape.decays_by_channel() ? " by channel" : "",
                     sequences, tokens),
         in_memory(2.0 * static_cast<double>(states.size()) * kFloat, rows * operations), 1, [&] {
           gated_delta(table_,
                       {.shape = shape,
                        .conv = conv.data(),
                        .rate = rate.data(),
                        .dt_bias = bias.data(),
                        .x = x.data(),
                        .b = x.data() + shape.channels() + shape.decays(),
                        .stride = stride,
                        .a = x.data() + shape.channels(),
                        .a_stride = stride,
                        .out = out.data(),
                        .out_stride = static_cast<size_t>(shape.value_rows())},
                       list, pool_);
         });
  }

  void latent() {
    const LatentShape shape{.heads = 16, .nope_dim = 128, .rope_dim = 64, .value_dim = 128, .rank = 512};
    constexpr int kBlock = 32;
    const double absorbed = static_cast<double>(shape.expansion_rows()) * shape.rank;
    const Expansion expansion(shape, random_floats(static_cast<size_t>(absorbed)), shape.dtype);
    for (const auto& [rows, depth] : {std::pair{1, 2048}, {1, 8192}, {64, 64}}) {
      LatentWorkspace workspace;
      if (!workspace.reserve(shape, rows, pool_.size(), allocator_)) return;
      const int blocks = depth / kBlock;
      RowView cache{.row_stride = latent_row_bytes(shape), .rows_per_block = kBlock};
      cache.block_stride = cache.row_stride * kBlock;
      const auto memory = *allocator_.allocate(cache.block_stride * static_cast<size_t>(blocks));
      cache.base = memory.data();
      const auto x = random_floats(static_cast<size_t>(shape.row_dim() + depth));
      for (int i = 0; i < depth; i++) write_numbers(x.data() + i, shape.row_dim(), shape.dtype, cache.slot(i));
      std::vector<int32_t> table(static_cast<size_t>(blocks));
      std::iota(table.begin(), table.end(), 0);
      const auto width = static_cast<size_t>(shape.heads * shape.query_dim());
      const auto q = random_floats(static_cast<size_t>(rows) * width);
      std::vector<float> out(static_cast<size_t>(rows * shape.heads * shape.value_dim));
      const AttentionSequence sequence{
          .pages = table, .first_row = 0, .num_rows = rows, .first_position = depth - rows};
      double seen = 0;
      for (int r = 0; r < rows; r++) seen += depth - rows + r + 1;
      time(fmt::format("latent attention, {} of {} tokens, 16 heads", rows, depth),
           in_memory(
               depth * static_cast<double>(cache.row_stride) + absorbed * static_cast<double>(size_of(shape.dtype)),
               seen * shape.heads * 2 * (shape.row_dim() + shape.rank) + rows * 2 * absorbed),
           1, [&] {
             attend_latents(table_,
                            {.shape = shape,
                             .cache = cache,
                             .expansion = &expansion,
                             .scale = 0.1F,
                             .q = q.data(),
                             .q_stride = width,
                             .out = out.data(),
                             .out_stride = static_cast<size_t>(shape.heads * shape.value_dim)},
                            {&sequence, 1}, workspace, pool_);
           });
    }
  }

  // One token per thread chooses among the pools before it.
  void index() {
    constexpr int kBlock = 32, kDepth = 8192;
    const PooledIndexShape shape{.pool = 4, .heads = 32, .dim = 128, .top_k = 2048};
    const int rows = pool_.size(), pools = kDepth / shape.pool, blocks = kDepth / kBlock;
    IndexWorkspace workspace;
    if (!workspace.reserve(shape, rows, allocator_)) return;
    RowView keys{.row_stride = pooled_key_bytes(shape), .rows_per_block = kBlock / shape.pool};
    keys.block_stride = keys.row_stride * static_cast<size_t>(keys.rows_per_block);
    const auto memory = *allocator_.allocate(keys.block_stride * static_cast<size_t>(blocks));
    keys.base = memory.data();
    const auto x = random_floats(static_cast<size_t>(shape.dim) + static_cast<size_t>(pools));
    for (int i = 0; i < pools; i++) write_numbers(x.data() + i, shape.dim, shape.dtype, keys.slot(i));
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    const auto width = static_cast<size_t>(shape.heads * shape.dim);
    const auto q = random_floats(static_cast<size_t>(rows) * width), weights = random_floats(width);
    TokenSelection selection = *TokenSelection::make(rows, shape.most_selected(), allocator_);
    const AttentionSequence sequence{.pages = table, .first_row = 0, .num_rows = rows, .first_position = kDepth - rows};
    PooledIndexArgs args;
    args.shape = shape, args.keys = keys;
    args.weight = weights.data(), args.q = q.data(), args.q_stride = width;
    const double scores = static_cast<double>(rows) * pools;
    time(fmt::format("index, {} of {} tokens, 32 heads of 128", rows, kDepth),
         in_memory(pools * static_cast<double>(keys.row_stride), 2 * scores * static_cast<double>(width)), 1,
         [&] { select_tokens(table_, args, {&sequence, 1}, workspace, pool_, selection); });
  }

  const KernelTable& table_;
  ThreadPool& pool_;
  const MachinePeaks& peaks_;
  std::vector<std::string> wanted_;
  Allocator allocator_;
};

int run(const std::vector<std::string>& args) {
  const auto setup = bench_setup(args);
  if (!setup) return fmt::print(stderr, "{}\n", setup.error().message), 2;
  const auto& [table, threads, wanted] = *setup;
  ThreadPool pool(threads);
  Allocator allocator;
  const auto peaks = probe_peaks(table, pool, allocator);
  if (!peaks) return fmt::print(stderr, "{}\n", peaks.error().message), 2;
  fmt::print("{}, {} threads; peaks: {}\n", describe(table), threads, describe(*peaks));
  Bench(table, pool, *peaks, wanted).all();
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::run({argv + 1, argv + argc}); }
