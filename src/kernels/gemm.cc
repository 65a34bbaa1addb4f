#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace quire::kernels {
namespace {

// With fewer rows than this many tiles, weights are what costs, and no thread should read another's.
constexpr int kTilesToSplitRows = 8;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t element_bytes(ActivationKind kind) {
  return kind == ActivationKind::kF32 ? 4 : kind == ActivationKind::kBF16 ? 2 : 1;
}

// Elements from row to row: whole cache lines.
size_t row_stride(ActivationKind kind, size_t inputs) { return round_up(inputs, 64 / element_bytes(kind)); }

int columns_end(const PackedMatrix& w, const GemmOutput& output) {
  return output.column_end < 0 ? w.outputs() : output.column_end;
}

// Everything gemm_panels() knows of one tile's place.
struct Tile {
  int panel;
  int row;
  int rows;
  size_t prefetch;
};

void run_tile(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
              const Tile& tile) {
  alignas(64) float sums[kMaxSlices * kMaxTileRows * 64];
  const auto layout = static_cast<size_t>(w.layout());
  const int width = panel_columns(w.layout());
  const auto inputs = static_cast<int>(padded_inputs(w.layout(), static_cast<size_t>(w.inputs())));
  for (int s = 0; s < w.slices(); s++) {
    table.gemm->tile[layout]({
        .rows = tile.rows,
        .begin = static_cast<int>(int64_t{inputs} * s / w.slices()),
        .end = static_cast<int>(int64_t{inputs} * (s + 1) / w.slices()),
        .a = a.row(tile.row),
        .a_stride = a.stride(),
        .meta = a.meta(tile.row),
        .meta_stride = a.meta_stride(),
        .panel = w.panel(tile.panel),
        .prefetch = tile.prefetch,
        .sums = sums + s * tile.rows * width,
    });
  }
  const auto row = static_cast<size_t>(tile.row);
  const int n = tile.panel * width;
  const auto column = static_cast<size_t>(n - output.column_begin);
  const auto at = [&](auto* base, size_t stride) { return base == nullptr ? base : base + row * stride + column; };
  table.gemm->finish({
      .sums = sums,
      .slices = w.slices(),
      .rows = tile.rows,
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
  });
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
  return layout == Layout::kF32 ? ActivationKind::kF32 : ActivationKind::kBF16;
}

Result<void> Activations::reserve(int rows, int inputs, Allocator& allocator) {
  QUIRE_CHECK(rows >= 0 && inputs >= 0);
  // fp32 rows are the largest: a byte and a record of 24 for 32 inputs are less.
  const size_t size = static_cast<size_t>(rows) * row_stride(ActivationKind::kF32, static_cast<size_t>(inputs)) * 4;
  if (size <= storage_.size()) return {};
  auto storage = allocator.allocate(size);
  if (!storage) return std::unexpected(storage.error());
  storage_ = std::move(*storage);
  rows_ = 0;
  return {};
}

void Activations::reshape(ActivationKind kind, int rows, int inputs) {
  QUIRE_CHECK(rows >= 0 && inputs > 0);
  QUIRE_CHECK(kind != ActivationKind::kInt8 || inputs % kGroup == 0);
  kind_ = kind;
  rows_ = rows;
  inputs_ = inputs;
  stride_ = row_stride(kind, static_cast<size_t>(inputs));
  const size_t metas = kind == ActivationKind::kInt8 ? meta_stride() : 0;
  QUIRE_CHECK(static_cast<size_t>(rows) * (stride_ * element_bytes(kind) + metas * sizeof(GroupMeta)) <=
              storage_.size());
}

std::byte* Activations::element(int m) const {
  return storage_.data() + static_cast<size_t>(m) * stride_ * element_bytes(kind_);
}

const void* Activations::row(int m) const { return element(m); }

const GroupMeta* Activations::meta(int m) const {
  if (kind_ != ActivationKind::kInt8) return nullptr;
  const std::byte* first = storage_.data() + static_cast<size_t>(rows_) * stride_;
  return reinterpret_cast<const GroupMeta*>(first) + static_cast<size_t>(m) * meta_stride();
}

void Activations::set_row(const KernelTable& table, const float* x, int m) {
  QUIRE_CHECK(m >= 0 && m < rows_);
  const auto inputs = static_cast<size_t>(inputs_);
  switch (kind_) {
    case ActivationKind::kF32:
      std::memcpy(element(m), x, inputs * sizeof(float));
      return;
    case ActivationKind::kBF16: {
      auto* row = reinterpret_cast<uint16_t*>(element(m));
      table.gemm->round_row_bf16(x, inputs_, row);
      if (inputs_ % 2 != 0) row[inputs] = 0;  // the packed weights have a pair there
      return;
    }
    case ActivationKind::kInt8:
      table.gemm->quantise_row(x, inputs_, reinterpret_cast<int8_t*>(element(m)), const_cast<GroupMeta*>(meta(m)));
      return;
  }
}

void Activations::set_rows(const KernelTable& table, const float* x, size_t stride, int begin, int end) {
  for (int m = begin; m < end; m++) set_row(table, x + static_cast<size_t>(m) * stride, m);
}

GemmPart gemm_part(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
                   int worker, int workers) {
  const int width = panel_columns(w.layout());
  const int first = output.column_begin / width;
  const int panels = (columns_end(w, output) + width - 1) / width - first;
  const int most = table.gemm->tile_rows[static_cast<size_t>(w.layout())];

  // The busiest worker's tiles decide; a split of the rows must win by more than chance.
  int row_parts = 1;
  int64_t least = INT64_MAX;
  for (int parts = 1; parts <= workers; parts++) {
    if (workers % parts != 0 || (parts > 1 && a.rows() < parts * most * kTilesToSplitRows)) continue;
    const int64_t across = (panels + workers / parts - 1) / (workers / parts);
    const int64_t tiles = across * (((a.rows() + parts - 1) / parts + most - 1) / most);
    if (tiles * 16 >= least * 15) continue;
    least = tiles;
    row_parts = parts;
  }
  const int panel_parts = workers / row_parts;
  const int across = worker % panel_parts;
  const int down = worker / panel_parts;
  const auto cut = [](int count, int part, int parts) { return static_cast<int>(int64_t{count} * part / parts); };
  return {first + cut(panels, across, panel_parts), first + cut(panels, across + 1, panel_parts),
          cut(a.rows(), down, row_parts), cut(a.rows(), down + 1, row_parts)};
}

void gemm_panels(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
                 const GemmPart& part) {
  check_call(w, a, output);
  const int count = part.row_end - part.row_begin;
  const int most = table.gemm->tile_rows[static_cast<size_t>(w.layout())];
  const int tiles = (count + most - 1) / most;
  for (int p = part.panel_begin; p < part.panel_end; p++) {
    int row = part.row_begin;
    for (int t = 0; t < tiles; t++) {
      const int left = tiles - t;
      const int rows = (part.row_end - row + left - 1) / left;  // as equal as can be: 8 rows are 4 + 4, not 6 + 2
      // While the last tile works on this panel from cache, memory would idle: the next panel is fetched then.
      const bool fetch = t > 0 && left == 1 && p + 1 < part.panel_end;
      run_tile(table, w, a, output, {p, row, rows, fetch ? w.panel_stride() : 0});
      row += rows;
    }
  }
}

void gemm(const KernelTable& table, const PackedMatrix& w, const Activations& a, const GemmOutput& output,
          ThreadPool& pool) {
  check_call(w, a, output);
  pool.run([&](int worker) { gemm_panels(table, w, a, output, gemm_part(table, w, a, output, worker, pool.size())); });
}

}  // namespace quire::kernels
