#include "kernels/experts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/gemm_product.h"

namespace quire::kernels {
namespace {

constexpr size_t kLine = 64;
// Parts that a worker's share of a call is begun in, so that others can help one that is slow.
constexpr int kPieces = 8;
// What a panel costs beside its tiles of rows, in tiles: its weights come from memory.
constexpr int kPanelCost = 2;
// Of sums at a time, unless one panel has more: they should stay in the second-level cache, beside weights.
constexpr size_t kMixFloats = size_t{64} << 10;

int64_t cost_of(const ExpertProduct& p) { return int64_t{p.matrix->panels()} * (p.activations->tiles() + kPanelCost); }

// The panels of the product that begin in [begin, end) of its cost.
GemmPart part_of(const ExpertProduct& p, int64_t begin, int64_t end) {
  const int64_t panel = p.activations->tiles() + kPanelCost;
  const auto at = [&](int64_t cost) {
    return static_cast<int>(std::clamp<int64_t>((cost + panel - 1) / panel, 0, p.matrix->panels()));
  };
  return {at(begin), at(end), 0, p.activations->tiles()};
}

}  // namespace

void ExpertPairs::reserve(int pairs, int experts) {
  groups_.reserve(static_cast<size_t>(experts));
  next_.reserve(static_cast<size_t>(experts));
  rows_.reserve(static_cast<size_t>(pairs));
  weights_.reserve(static_cast<size_t>(pairs));
}

void ExpertPairs::assign(std::span<const Route> routes, int chosen, int experts) {
  next_.assign(static_cast<size_t>(experts), 0);
  for (const Route& route : routes) ++next_[static_cast<size_t>(route.expert)];
  groups_.clear();
  int first = 0;
  for (int e = 0; e < experts; e++) {
    int32_t& next = next_[static_cast<size_t>(e)];
    if (next > 0) groups_.push_back({e, first, next});
    first += std::exchange(next, first);
  }
  rows_.resize(routes.size());
  weights_.resize(routes.size());
  for (size_t i = 0; i < routes.size(); i++) {
    const auto at = static_cast<size_t>(next_[static_cast<size_t>(routes[i].expert)]++);
    rows_[at] = static_cast<int32_t>(i / static_cast<size_t>(chosen));
    weights_[at] = routes[i].weight;
  }
}

Result<void> ExpertActivations::reserve(int pairs, int experts, int inputs, Allocator& allocator) {
  groups_.reserve(static_cast<size_t>(experts));
  const size_t size = ActivationRows::most_room(pairs, inputs) + static_cast<size_t>(experts) * kLine;
  if (size <= storage_.size()) return {};
  auto storage = allocator.allocate(size);
  if (!storage) return std::unexpected(storage.error());
  storage_ = std::move(*storage);
  return {};
}

void ExpertActivations::reshape(const KernelTable& table, ActivationKind kind, std::span<const ExpertGroup> groups,
                                int inputs) {
  groups_.clear();
  size_t used = 0;
  for (const ExpertGroup& group : groups) {
    const ActivationRows& rows = groups_.emplace_back(table, kind, group.count, inputs, storage_.data() + used);
    used += (rows.room() + kLine - 1) / kLine * kLine;
  }
  QUIRE_CHECK(used <= storage_.size());
}

void gemm(const KernelTable& table, std::span<const ExpertProduct> products, ThreadPool& pool) {
  int64_t total = 0;
  for (const ExpertProduct& p : products) total += cost_of(p);
  const int64_t units = int64_t{pool.size()} * kPieces;
  pool.run_pieces(kPieces, [&](int share, int piece) {
    const int64_t unit = int64_t{share} * kPieces + piece;
    const int64_t begin = total * unit / units, end = total * (unit + 1) / units;
    int64_t at = 0;
    for (const ExpertProduct& p : products) {
      const int64_t cost = cost_of(p);
      if (at < end && at + cost > begin) {
        const GemmPart part = part_of(p, begin - at, end - at);
        if (part.panel_begin < part.panel_end) gemm_panels(table, *p.matrix, *p.activations, p.output, part);
      }
      at += cost;
    }
  });
}

Result<void> MixWorkspace::reserve(int rows, int slices, int workers, Allocator& allocator) {
  floats_ = std::max(kMixFloats, static_cast<size_t>(rows) * static_cast<size_t>(slices) * 64);
  const size_t size = floats_ * sizeof(float) * static_cast<size_t>(workers);
  if (size <= storage_.size()) return {};
  auto storage = allocator.allocate(size);
  if (!storage) return std::unexpected(storage.error());
  storage_ = std::move(*storage);
  return {};
}

std::span<float> MixWorkspace::of_worker(int worker) const {
  return {reinterpret_cast<float*>(storage_.data()) + static_cast<size_t>(worker) * floats_, floats_};
}

namespace {

// All terms of panels [begin, end), added up in `sums`.
struct Mix {
  const KernelTable& table;
  std::span<const ExpertTerm> terms;
  int rows;
  const GemmOutput& output;

  int width() const { return panel_columns(terms.front().matrix->layout()); }
  int slices() const { return terms.front().matrix->slices(); }
  size_t panel_floats() const {
    return static_cast<size_t>(rows) * static_cast<size_t>(width()) * static_cast<size_t>(slices());
  }

  void run(int begin, int end, float* sums) const {
    std::memset(sums, 0, static_cast<size_t>(end - begin) * panel_floats() * sizeof(float));
    for (const ExpertTerm& term : terms)
      if (term.bias != nullptr) add_bias(term, begin, end, sums);
    for (const ExpertTerm& term : terms) {
      const Mixing mixing{term.rows, term.weights, sums, begin, rows};
      const GemmOutput all;
      kernels::run({table, *term.matrix, *term.activations, all, &mixing}, {begin, end, 0, term.activations->tiles()});
    }
    for (int p = begin; p < end; p++) finish(p, sums + static_cast<size_t>(p - begin) * panel_floats());
  }

  int columns(int panel) const { return std::min(width(), terms.front().matrix->outputs() - panel * width()); }

  // To the first slices.
  void add_bias(const ExpertTerm& term, int begin, int end, float* sums) const {
    for (int p = begin; p < end; p++) {
      const float* bias = term.bias + p * width();
      for (int r = 0; r < term.activations->rows(); r++) {
        float* row = sums + static_cast<size_t>(p - begin) * panel_floats() + term.rows[r] * width();
        for (int c = 0; c < columns(p); c++) row[c] += term.weights[r] * bias[c];
      }
    }
  }

  void finish(int panel, const float* sums) const {
    FinishArgs args = destination(*terms.front().matrix, output, panel, 0, rows);
    args.sums = sums;
    args.slice_stride = static_cast<size_t>(rows) * static_cast<size_t>(width());
    table.gemm->finish(args);
  }
};

}  // namespace

void mix_experts(const KernelTable& table, std::span<const ExpertTerm> terms, int rows, const GemmOutput& output,
                 const MixWorkspace& workspace, ThreadPool& pool) {
  if (rows == 0) return;
  QUIRE_CHECK(!terms.empty() && output.column_begin == 0 && output.column_end == -1);
  const Mix mix{table, terms, rows, output};
  const int panels = terms.front().matrix->panels();
  for (const ExpertTerm& term : terms) {
    QUIRE_CHECK(term.activations->kind() == activation_kind(term.matrix->layout()));
    QUIRE_CHECK(term.activations->inputs() == term.matrix->inputs() && term.matrix->panels() == panels);
    QUIRE_CHECK(term.matrix->slices() == mix.slices() && panel_columns(term.matrix->layout()) == mix.width());
  }
  const size_t room = workspace.of_worker(0).size() / mix.panel_floats();
  QUIRE_CHECK(room >= 1);
  const int pieces = pool.size() * kPieces;
  const int most = std::min(static_cast<int>(std::min<size_t>(room, 4096)), (panels + pieces - 1) / pieces);
  std::atomic<int> next{0};
  pool.run([&](int worker) {
    for (int begin; (begin = next.fetch_add(most, std::memory_order_relaxed)) < panels;)
      mix.run(begin, std::min(begin + most, panels), workspace.of_worker(worker).data());
  });
}

}  // namespace quire::kernels
