#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/gemm_product.h"

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

// A worker's share is begun piece by piece, so that others can help one that is slow.
constexpr int kPieces = 8;

GemmPart piece_of(const GemmPart& part, int piece) {
  const int panels = part.panel_end - part.panel_begin;
  const auto at = [&](int i) { return part.panel_begin + panels * i / kPieces; };
  return {at(piece), at(piece + 1), part.tile_begin, part.tile_end};
}

void check_call(const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output) {
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

ActivationRows::ActivationRows(const KernelTable& table, ActivationKind kind, int rows, int inputs, std::byte* memory)
    : memory_(memory), kind_(kind), rows_(rows), inputs_(inputs), wide_(rows >= least_wide_rows(table, kind)) {
  QUIRE_CHECK(rows >= 0 && inputs > 0);
  QUIRE_CHECK(kind != ActivationKind::kInt8 || inputs % kGroup == 0);
  const int most = wide_ ? kWideRows : kTileRows;
  tiles_ = (rows + most - 1) / most;
  pitch_ = row_bytes(kind, inputs);
  if (wide_ && kind == ActivationKind::kBF16) pitch_ = round_up(static_cast<size_t>(inputs), kGroup) * 2;
  room_rows_ = rows;
  if (wide_) {
    const int last = tile_begin(tiles_ - 1);
    room_rows_ = last + (kind == ActivationKind::kBF16 ? wide_bf16_slots(rows) : wide_slots(rows - last));
  }
}

size_t ActivationRows::most_room(int rows, int inputs) {
  return static_cast<size_t>(rows) * row_bytes(ActivationKind::kF32, inputs);
}

int ActivationRows::tile_of(int m) const {
  return wide_ ? m / kWideRows : static_cast<int>(((int64_t{m} + 1) * tiles_ - 1) / rows_);
}

ActivationRows::Place ActivationRows::place_of(int m) const {
  QUIRE_CHECK(m >= 0 && m < rows_);
  const int t = tile_of(m), held = tile_begin(t + 1) - tile_begin(t);
  const auto rows = static_cast<size_t>(wide_ ? wide_slots(held) : held), r = static_cast<size_t>(m - tile_begin(t));
  std::byte* start = memory_ + static_cast<size_t>(tile_begin(t)) * pitch_;
  return {start + r * kGroup, start + rows * kGroup + r * sizeof(GroupMeta), rows * kGroupRowBytes};
}

void ActivationRows::set_row(const KernelTable& table, const float* x, int m) {
  QUIRE_CHECK(m >= 0 && m < rows_);
  std::byte* row = memory_ + static_cast<size_t>(m) * pitch_;
  switch (kind_) {
    case ActivationKind::kF32:
      std::memcpy(row, x, static_cast<size_t>(inputs_) * sizeof(float));
      return;
    case ActivationKind::kRounded:
      table.gemm->round_row(x, inputs_, row);
      return;
    case ActivationKind::kBF16:
      if (wide_) {
        const int first = tile_begin(tile_of(m));
        const auto slots = static_cast<size_t>(wide_bf16_slots(rows_)), r = static_cast<size_t>(m - first);
        std::byte* start = memory_ + static_cast<size_t>(first) * pitch_;
        table.wide_bf16->round_row(x, inputs_, start + r * kRowBlockBytes, slots * kRowBlockBytes);
      } else {
        table.gemm->round_row_bf16(x, inputs_, row);
      }
      return;
    case ActivationKind::kInt8: {
      const Place place = place_of(m);
      table.gemm->quantise_row(x, inputs_, place.values, place.records, place.step);
      return;
    }
  }
}

void ActivationRows::set_rows(const KernelTable& table, const float* x, size_t stride, int begin, int end) {
  for (int m = begin; m < end; m++) set_row(table, x + static_cast<size_t>(m) * stride, m);
}

void ActivationRows::copy_row(const ActivationRows& others, int from, int m) {
  QUIRE_CHECK(kind_ == ActivationKind::kInt8 && others.kind_ == kind_ && others.inputs_ == inputs_);
  const Place source = others.place_of(from), place = place_of(m);
  for (size_t g = 0; g < static_cast<size_t>(inputs_ / kGroup); g++) {
    std::memcpy(place.values + g * place.step, source.values + g * source.step, kGroup);
    std::memcpy(place.records + g * place.step, source.records + g * source.step, sizeof(GroupMeta));
  }
}

Result<void> Activations::reserve(int rows, int inputs, Allocator& allocator) {
  QUIRE_CHECK(rows >= 0 && inputs >= 0);
  const size_t size = most_room(rows, inputs);
  if (size <= storage_.size()) return {};
  auto storage = allocator.allocate(size);
  if (!storage) return std::unexpected(storage.error());
  storage_ = std::move(*storage);
  static_cast<ActivationRows&>(*this) = {};
  return {};
}

void Activations::reshape(const KernelTable& table, ActivationKind kind, int rows, int inputs) {
  static_cast<ActivationRows&>(*this) = {table, kind, rows, inputs, storage_.data()};
  QUIRE_CHECK(room() <= storage_.size());
}

GemmPart gemm_part(const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output, int worker, int workers) {
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

void gemm_panels(const KernelTable& table, const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output,
                 const GemmPart& part) {
  check_call(w, a, output);
  run({table, w, a, output}, part);
}

void gemm(const KernelTable& table, const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output,
          ThreadPool& pool) {
  check_call(w, a, output);
  pool.run_pieces(kPieces, [&](int share, int piece) {
    gemm_panels(table, w, a, output, piece_of(gemm_part(w, a, output, share, pool.size()), piece));
  });
}

}  // namespace quire::kernels
