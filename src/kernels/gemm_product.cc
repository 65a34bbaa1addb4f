#include "kernels/gemm_product.h"

#include <algorithm>

namespace quire::kernels {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// What multiplies several tiles of integers with a panel; null if GemmKernels multiply each alone.
const PanelKernels* panel_kernels(const KernelTable& table, const PackedMatrix& w, const ActivationRows& a) {
  if (a.wide()) return table.wide_int8;
  const PanelKernels* kernels = table.unpacked_int8;
  if (kernels == nullptr || kernels->tile[static_cast<size_t>(w.layout())] == nullptr) return nullptr;
  return a.rows() >= kernels->least_rows ? kernels : nullptr;
}

// Where slices go, to be added to those of the rows that mix them.
FinishArgs mixed_destination(const Product& x, int panel, int row, int rows) {
  const Mixing& mixing = *x.mixing;
  const auto slice = static_cast<size_t>(mixing.count) * static_cast<size_t>(x.width());
  const auto panels = static_cast<size_t>(panel - mixing.first_panel);
  FinishArgs args{};
  args.slices = x.w.slices();
  args.rows = rows;
  args.width = x.width();
  args.columns = std::min(x.width(), x.columns_end() - panel * x.width());
  args.out = mixing.sums + panels * static_cast<size_t>(x.w.slices()) * slice;
  args.out_stride = static_cast<size_t>(x.width());
  args.mix_weights = mixing.weights + row;
  args.mix_rows = mixing.rows + row;
  args.mix_stride = slice;
  return args;
}

FinishArgs destination(const Product& x, int panel, int row, int rows) {
  return x.mixing != nullptr ? mixed_destination(x, panel, row, rows) : destination(x.w, x.output, panel, row, rows);
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
  if (x.mixing != nullptr) return;
  const int n = panel * x.width();
  const int columns = std::min(x.width(), x.columns_end() - n);
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

}  // namespace

FinishArgs destination(const PackedMatrix& w, const GemmOutput& output, int panel, int row, int rows) {
  const auto first = static_cast<size_t>(row);
  const int width = panel_columns(w.layout()), n = panel * width;
  const auto column = static_cast<size_t>(n - output.column_begin);
  const auto at = [&](auto* base, size_t stride) { return base == nullptr ? base : base + first * stride + column; };
  return {
      .sums = nullptr,
      .slices = w.slices(),
      .slice_stride = 0,
      .rows = rows,
      .width = width,
      .columns = std::min(width, columns_end(w, output) - n),
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

void run(const Product& product, const GemmPart& part) {
  const auto& [table, w, a, output, mixing] = product;
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

}  // namespace quire::kernels
