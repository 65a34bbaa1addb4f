#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::kernels {
namespace {

// With fewer tiles of rows, weights are what costs, and no thread should read another's.
constexpr int kTilesToSplitRows = 8;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Floats: also bf16 takes as much as fp32, and has whole blocks.
size_t row_bytes(ActivationKind kind, int inputs) {
  const size_t groups = round_up(static_cast<size_t>(inputs), kGroup) / kGroup;
  return groups * (kind == ActivationKind::kInt8 ? kGroupRowBytes : kGroup * sizeof(float));
}

constexpr size_t kRowBlockBytes = kGroup * 2;  // of one row and block of bf16 in wide tiles

// From how many rows on they are multiplied in wide tiles.
int least_wide_rows(const KernelTable& table, ActivationKind kind) {
  if (kind == ActivationKind::kInt8 && table.wide_int8 != nullptr) return table.wide_int8->least_rows;
  if (kind == ActivationKind::kBF16 && table.wide_bf16 != nullptr) return table.wide_bf16->least_rows;
  return std::numeric_limits<int>::max();
}

int columns_end(const PackedMatrix& w, const GemmOutput& output) {
  return output.column_end < 0 ? w.outputs() : output.column_end;
}

// What multiplies several tiles of integers with a panel; null if GemmKernels multiply each alone.
const PanelKernels* panel_kernels(const KernelTable& table, const PackedMatrix& w, const Activations& a) {
  if (a.wide()) return table.wide_int8;
  const PanelKernels* kernels = table.unpacked_int8;
  if (kernels == nullptr || kernels->tile[static_cast<size_t>(w.layout())] == nullptr) return nullptr;
  return a.rows() >= kernels->least_rows ? kernels : nullptr;
}

// One product: a matrix, its activations, and where results go.
struct Product {
  const KernelTable& table;
  const PackedMatrix& w;
  const Activations& a;
  const GemmOutput& output;

  int width() const { return panel_columns(w.layout()); }
  int rows(int tile) const { return a.tile_begin(tile + 1) - a.tile_begin(tile); }
  // Where slice s begins, as the tiles count inputs.
  int slice_begin(int s) const {
    const auto inputs = static_cast<int64_t>(padded_inputs(w.layout(), static_cast<size_t>(w.inputs())));
    return static_cast<int>(inputs * s / w.slices());
  }
};

// Where results of `rows` rows from `row` on go; not where they come from.
FinishArgs destination(const Product& x, int panel, int row, int rows) {
  const GemmOutput& output = x.output;
  const auto first = static_cast<size_t>(row);
  const int n = panel * x.width();
  const auto column = static_cast<size_t>(n - output.column_begin);
  const auto at = [&](auto* base, size_t stride) { return base == nullptr ? base : base + first * stride + column; };
  return {
      .sums = nullptr,
      .slices = x.w.slices(),
      .slice_stride = 0,
      .rows = rows,
      .width = x.width(),
      .columns = std::min(x.width(), columns_end(x.w, output) - n),
      .out = at(output.out, output.stride),
      .out_stride = output.stride,
      .addend = at(output.addend, output.addend_stride),
      .addend_stride = output.addend_stride,
      .addend_scale = output.addend_scale,
      .bias = output.bias == nullptr ? nullptr : output.bias + column,
      .residual = at(output.residual, output.residual_stride),
      .residual_stride = output.residual_stride,
  };
}

// The sums of all slices of a tile become outputs.
void finish(const Product& x, int panel, int tile, const float* sums) {
  FinishArgs args = destination(x, panel, x.a.tile_begin(tile), x.rows(tile));
  args.sums = sums;
  args.slice_stride = static_cast<size_t>(args.rows * args.width);
  x.table.gemm->finish(args);
}

// Fetches the lines that a tile's results go to, while they are computed: rows lie far apart.
void fetch_output(const Product& x, int panel, int tile) {
  const int n = panel * x.width();
  const int columns = std::min(x.width(), columns_end(x.w, x.output) - n);
  for (int m = x.a.tile_begin(tile); m < x.a.tile_begin(tile + 1); m++) {
    const float* row = x.output.out + static_cast<size_t>(m) * x.output.stride + (n - x.output.column_begin);
    for (int c = 0; c < columns; c += 16) __builtin_prefetch(row + c, 1, 2);
  }
}

// A panel as it lies in memory.
void run_tile(const Product& x, int panel, int tile, size_t prefetch) {
  alignas(64) float sums[kMaxSums];
  const int rows = x.rows(tile);
  for (int s = 0; s < x.w.slices(); s++) {
    x.table.gemm->tile[static_cast<size_t>(x.w.layout())]({
        .rows = rows,
        .begin = x.slice_begin(s),
        .end = x.slice_begin(s + 1),
        .a = x.a.tile(tile),
        .a_pitch = x.a.pitch(),
        .panel = x.w.panel(panel),
        .prefetch = prefetch,
        .sums = sums + s * rows * x.width(),
    });
  }
  finish(x, panel, tile, sums);
}

// Sums of several tiles of a panel: they share what is unpacked of its weights. A few tiles always do.
constexpr int kFewTiles = 4;
constexpr int kTileSums = kWideRows * 32;  // at most, of a slice
constexpr int kManySums = 16 * 1024;       // for as many tiles as fit

// The packed groups that come after those at work: of this panel, or of the next one.
struct Coming {
  const std::byte* data;
  size_t size;
};

// Several tiles of integers at a time, for one thread.
class PanelProduct {
 public:
  PanelProduct(const Product& product, const PanelKernels& kernels)
      : x_(product),
        kernels_(kernels),
        layout_(static_cast<size_t>(product.w.layout())),
        groups_(padded_inputs(product.w.layout(), static_cast<size_t>(product.w.inputs())) / kGroup) {}

  void run(const GemmPart& part) {
    if (part.panel_begin == part.panel_end || part.tile_begin == part.tile_end) return;
    const int most = std::max(kFewTiles, kManySums / (x_.w.slices() * tile_sums()));
    alone_ = part.tile_end - part.tile_begin == 1;
    kernels_.enter(x_.w.layout());
    for (int p = part.panel_begin; p < part.panel_end; p++) {
      for (int t = part.tile_begin; t < part.tile_end; t += most) {
        const int end = std::min(t + most, part.tile_end);
        run(p, t, end, end == part.tile_end && p + 1 < part.panel_end);
      }
    }
    kernels_.leave();
  }

 private:
  int tile_sums() const { return (x_.a.wide() ? kWideRows : kTileRows) * x_.width(); }

  // What follows group `last` - 1; `next` says that the panel behind this one is this thread's too.
  Coming coming_after(int panel, size_t last, bool next) const {
    const bool same = last < groups_;
    const size_t from = same ? last : 0;
    const size_t to = same || next ? std::min(from + kernels_.groups, groups_) : 0;
    const size_t begin = group_offset(x_.w.layout(), from);
    return {x_.w.panel(same ? panel : panel + 1) + begin, group_offset(x_.w.layout(), to) - begin};
  }

  // Tiles [begin, end) of a panel; `next` as above.
  void run(int panel, int begin, int end, bool next) {
    alignas(64) float all_sums[std::max(kFewTiles * kMaxSlices * kTileSums, kManySums)];
    const auto sums = [&](int t) { return all_sums + (t - begin) * x_.w.slices() * tile_sums(); };
    alignas(64) std::byte weights[kUnpackedBytes];
    for (size_t first = 0; first < groups_; first += kernels_.groups) {
      const size_t last = std::min(first + kernels_.groups, groups_);
      // Each tile fetches its share of what comes next: all at once would keep memory busy for a short while only. A
      // tile alone waits for memory anyway.
      const Coming coming = alone_ ? Coming{nullptr, 0} : coming_after(panel, last, next);
      const size_t shares = static_cast<size_t>(end - begin) * (last - first);
      const size_t share = round_up((coming.size + shares - 1) / shares, 64);  // of a tile and group
      kernels_.unpack[layout_]({x_.w.panel(panel), first, last, weights});
      for (int t = begin; t < end; t++) {
        if (last == groups_) fetch_output(x_, panel, t);
        const size_t fetched = std::min(static_cast<size_t>(t - begin) * (last - first) * share, coming.size);
        kernels_.tile[layout_]({
            .rows = x_.rows(t),
            .first = first,
            .last = last,
            .slice = groups_ / static_cast<size_t>(x_.w.slices()),
            .a = x_.a.tile(t),
            .weights = weights,
            .panel = x_.w.panel(panel),
            .fetch = coming.data + fetched,
            .fetch_bytes = fetched == coming.size ? 0 : share,
            .next_a = t + 1 < end ? static_cast<size_t>(x_.rows(t)) * x_.a.pitch() : 0,
            .sums = sums(t),
        });
      }
    }
    for (int t = begin; t < end; t++) finish(x_, panel, t, sums(t));
  }

  const Product& x_;
  const PanelKernels& kernels_;
  size_t layout_;
  size_t groups_;
  bool alone_ = false;
};

// bf16 in wide tiles, for one thread.
class WideProduct {
 public:
  explicit WideProduct(const Product& product) : x_(product), kernels_(*product.table.wide_bf16) {}

  // So many rows at a time as the second-level cache holds beside some weights; tiles by twos.
  void run(const GemmPart& part) {
    if (part.panel_begin == part.panel_end || part.tile_begin == part.tile_end) return;
    const int most = std::min(kWidePanelRows / x_.w.slices(), static_cast<int>(kCachedBytes / x_.a.pitch()));
    const int most_pairs = std::max(1, most / (2 * kWideRows));
    const int pairs = (part.tile_end - part.tile_begin + 1) / 2;
    const int groups = (pairs + most_pairs - 1) / most_pairs;
    const auto tile = [&](int group) { return std::min(part.tile_begin + pairs * group / groups * 2, part.tile_end); };
    kernels_.enter(wide_bf16_slots(x_.a.rows()));
    for (int g = 0; g < groups; g++) run(part, tile(g), tile(g + 1));
    kernels_.leave();
  }

 private:
  static constexpr size_t kCachedBytes = size_t{1} << 20;

  void run(const GemmPart& part, int tile_begin, int tile_end) {
    const int row = x_.a.tile_begin(tile_begin), rows = x_.a.tile_begin(tile_end) - row;
    for (int p = part.panel_begin; p < part.panel_end; p++) {
      kernels_.panel({.rows = rows,
                      .slots = wide_bf16_slots(x_.a.rows()),
                      .blocks = padded_inputs(Layout::kBF16, static_cast<size_t>(x_.w.inputs())) / kGroup,
                      .a = x_.a.tile(tile_begin),
                      .panel = x_.w.panel(p),
                      .next = p + 1 < part.panel_end ? x_.w.panel(p + 1) : nullptr,
                      .sums = sums_,
                      .out = destination(x_, p, row, rows)});
    }
  }

  const Product& x_;
  const WidePanelKernels& kernels_;
  alignas(64) float sums_[kWidePanelRows * 64];
};

// A worker's share is begun piece by piece, so that others can help one that is slow.
constexpr int kPieces = 8;

GemmPart piece_of(const GemmPart& part, int piece) {
  const int panels = part.panel_end - part.panel_begin;
  const auto at = [&](int i) { return part.panel_begin + panels * i / kPieces; };
  return {at(piece), at(piece + 1), part.tile_begin, part.tile_end};
}

void check_call(const PackedMatrix& w, const Activations& a, const GemmOutput& output) {
  QUIRE_CHECK(a.kind() == activation_kind(w.layout()));
  QUIRE_CHECK(a.inputs() == w.inputs());
  QUIRE_CHECK(output.column_begin >= 0 && output.column_begin % kColumnUnit == 0);
  QUIRE_CHECK(columns_end(w, output) <= w.outputs());
}

}  // namespace

ActivationKind activation_kind(Layout layout) {
  if (is_integer(layout)) return ActivationKind::kInt8;
  if (layout == Layout::kBF16) return ActivationKind::kBF16;
  return layout == Layout::kF16 ? ActivationKind::kRounded : ActivationKind::kF32;
}

bool multiplies_wide(const KernelTable& table, ActivationKind kind, int rows) {
  return rows >= least_wide_rows(table, kind);
}

Result<void> Activations::reserve(int rows, int inputs, Allocator& allocator) {
  QUIRE_CHECK(rows >= 0 && inputs >= 0);
  const size_t size = static_cast<size_t>(rows) * row_bytes(ActivationKind::kF32, inputs);  // the largest kind
  if (size <= storage_.size()) return {};
  auto storage = allocator.allocate(size);
  if (!storage) return std::unexpected(storage.error());
  storage_ = std::move(*storage);
  rows_ = tiles_ = 0;
  return {};
}

void Activations::reshape(const KernelTable& table, ActivationKind kind, int rows, int inputs) {
  QUIRE_CHECK(rows >= 0 && inputs > 0);
  QUIRE_CHECK(kind != ActivationKind::kInt8 || inputs % kGroup == 0);
  kind_ = kind;
  rows_ = rows;
  inputs_ = inputs;
  wide_ = multiplies_wide(table, kind, rows);
  const int most = wide_ ? kWideRows : kTileRows;
  tiles_ = (rows + most - 1) / most;
  pitch_ = row_bytes(kind, inputs);
  if (wide_ && kind == ActivationKind::kBF16) pitch_ = round_up(static_cast<size_t>(inputs), kGroup) * 2;
  // Wide tiles read on behind their rows: in room that larger kinds would need.
  const bool all = wide_ && (kind == ActivationKind::kInt8 || rows > kWideRows);
  const size_t read = all ? round_up(static_cast<size_t>(rows), kWideRows) : static_cast<size_t>(rows);
  QUIRE_CHECK(read * pitch_ <= storage_.size());
}

void Activations::set_row(const KernelTable& table, const float* x, int m) {
  QUIRE_CHECK(m >= 0 && m < rows_);
  std::byte* row = storage_.data() + static_cast<size_t>(m) * pitch_;
  const int t = wide_ ? m / kWideRows : static_cast<int>(((int64_t{m} + 1) * tiles_ - 1) / rows_);
  const int held = tile_begin(t + 1) - tile_begin(t);
  const auto r = static_cast<size_t>(m - tile_begin(t));
  std::byte* start = storage_.data() + static_cast<size_t>(tile_begin(t)) * pitch_;
  switch (kind_) {
    case ActivationKind::kF32:
      std::memcpy(row, x, static_cast<size_t>(inputs_) * sizeof(float));
      return;
    case ActivationKind::kRounded:
      table.gemm->round_row(x, inputs_, row);
      return;
    case ActivationKind::kBF16:
      if (wide_) {
        const auto slots = static_cast<size_t>(wide_bf16_slots(rows_));
        table.wide_bf16->round_row(x, inputs_, start + r * kRowBlockBytes, slots * kRowBlockBytes);
      } else {
        table.gemm->round_row_bf16(x, inputs_, row);
      }
      return;
    case ActivationKind::kInt8: {
      const auto rows = static_cast<size_t>(wide_ ? wide_slots(held) : held);
      table.gemm->quantise_row(x, inputs_, start + r * kGroup, start + rows * kGroup + r * sizeof(GroupMeta),
                               rows * kGroupRowBytes);
      return;
    }
  }
}

void Activations::set_rows(const KernelTable& table, const float* x, size_t stride, int begin, int end) {
  for (int m = begin; m < end; m++) set_row(table, x + static_cast<size_t>(m) * stride, m);
}

GemmPart gemm_part(const PackedMatrix& w, const Activations& a, const GemmOutput& output, int worker, int workers) {
  const int width = panel_columns(w.layout());
  const int first = output.column_begin / width;
  const int panels = (columns_end(w, output) + width - 1) / width - first;

  // The busiest worker's tiles decide; a split of the rows must win by more than chance.
  int row_parts = 1;
  int64_t least = INT64_MAX;
  for (int parts = 1; parts <= workers; parts++) {
    if (workers % parts != 0 || (parts > 1 && a.tiles() < parts * kTilesToSplitRows)) continue;
    const int64_t across = (panels + workers / parts - 1) / (workers / parts);
    const int64_t tiles = across * ((a.tiles() + parts - 1) / parts);
    if (parts > 1 && tiles * 16 > least * 15) continue;
    least = tiles;
    row_parts = parts;
  }
  const int panel_parts = workers / row_parts;
  const int across = worker % panel_parts;
  const int down = worker / panel_parts;
  const auto cut = [](int count, int part, int parts) { return static_cast<int>(int64_t{count} * part / parts); };
  return {first + cut(panels, across, panel_parts), first + cut(panels, across + 1, panel_parts),
          cut(a.tiles(), down, row_parts), cut(a.tiles(), down + 1, row_parts)};
}

void gemm_panels(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
                 const GemmPart& part) {
  check_call(w, a, output);
  const Product product{table, w, a, output};
  if (a.wide() && a.kind() == ActivationKind::kBF16) return WideProduct(product).run(part);
  if (const PanelKernels* kernels = panel_kernels(table, w, a)) return PanelProduct(product, *kernels).run(part);
  for (int p = part.panel_begin; p < part.panel_end; p++) {
    for (int t = part.tile_begin; t < part.tile_end; t++) {
      // While the last tile works on this panel from cache, memory would idle: the next panel is fetched then.
      const bool fetch = t > part.tile_begin && t + 1 == part.tile_end && p + 1 < part.panel_end;
      run_tile(product, p, t, fetch ? w.panel_stride() : 0);
    }
  }
}

void gemm(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
          ThreadPool& pool) {
  check_call(w, a, output);
  pool.run_pieces(kPieces, [&](int share, int piece) {
    gemm_panels(table, w, a, output, piece_of(gemm_part(w, a, output, share, pool.size()), piece));
  });
}

}  // namespace quire::kernels
