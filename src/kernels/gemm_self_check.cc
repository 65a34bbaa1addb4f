#include "kernels/gemm_self_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/gemm_kernels.h"

namespace quire::kernels {
namespace {

constexpr int kInputs = 256;
constexpr int kRows = kTileRows;
constexpr const char* kNames[kLayouts] = {"f32",     "f16",      "bf16",       "int2 sub",   "int3 sub",
                                          "int4",    "int4 min", "int4 super", "int4 table", "int4 table super",
                                          "int4 mx", "int5",     "int5 min",   "int5 super", "int6 sub",
                                          "int8"};

// Enough randomness for a test: xorshift64*.
class Numbers {
 public:
  uint32_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>(state_ * 0x2545F4914F6CDD1DULL >> 32);
  }
  // Magnitudes from 2^-24 to 2^8, either sign.
  float number() {
    const uint32_t random = bits();
    return std::bit_cast<float>((random & 0x807fffffU) | (103 + random % 32) << 23);
  }
  // fp16 from its denormals to 2^8.
  uint16_t half() { return static_cast<uint16_t>(bits() & 0xdfffU); }

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15ULL;
};

bool same_number(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

bool same_numbers(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!same_number(a[i], b[i])) return false;
  }
  return true;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

using Rows = std::array<float, size_t{kRows} * kInputs>;

// Rows of numbers, a zero group, denormals, and in the last row NaN and infinities.
Rows random_rows(Numbers& numbers) {
  Rows rows;
  for (float& x : rows) x = numbers.number();
  for (size_t k = 0; k < kGroup; k++) rows[k] = 0;
  for (size_t k = kInputs; k < 2 * kInputs; k += 5) rows[k] = std::bit_cast<float>(numbers.bits() & 0x807fffffU);
  for (size_t k = 0; k < 96; k += 7) {
    rows[rows.size() - kInputs + k] = std::bit_cast<float>(0x7f800000U + static_cast<uint32_t>(k % 2));
  }
  return rows;
}

// The last `count` rows, as the kernels of this layout read them.
struct alignas(64) Tile {
  std::byte bytes[kRows * kInputs * sizeof(float)];
  bool operator==(const Tile& other) const { return std::memcmp(bytes, other.bytes, sizeof bytes) == 0; }
};

Tile prepare(const GemmKernels& kernels, Layout layout, const Rows& rows, int count) {
  Tile tile{};
  for (int r = 0; r < count; r++) {
    const float* x = rows.data() + (kRows - count + r) * kInputs;
    std::byte* row = tile.bytes + static_cast<size_t>(r) * kInputs * sizeof(float);
    if (is_integer(layout)) {
      const auto all = static_cast<size_t>(count);
      const auto index = static_cast<size_t>(r);
      kernels.quantise_row(x, kInputs, tile.bytes + index * kGroup,
                           tile.bytes + all * kGroup + index * sizeof(GroupMeta), all * kGroupRowBytes);
    } else if (layout == Layout::kF32) {
      std::memcpy(row, x, kInputs * sizeof(float));
    } else {
      (layout == Layout::kF16 ? kernels.round_row : kernels.round_row_bf16)(x, kInputs, row);
    }
  }
  return tile;
}

// Random bytes with finite scales: any other byte is a valid weight.
std::vector<Line> random_panel(Layout layout, Numbers& numbers) {
  std::vector<Line> panel(panel_bytes(layout, kInputs) / sizeof(Line));
  std::byte* bytes = panel[0].bytes;
  const size_t size = panel.size() * sizeof(Line);
  if (layout == Layout::kF32) {
    for (size_t i = 0; i < size; i += 4) {
      const float x = numbers.number();
      std::memcpy(bytes + i, &x, 4);
    }
    return panel;
  }
  for (size_t i = 0; i < size; i += 2) {
    const uint16_t half = numbers.half();  // as bf16 it is finite too
    std::memcpy(bytes + i, &half, 2);
  }
  if (!is_integer(layout)) return panel;
  for (size_t g = 0; g < kInputs / kGroup; g++) {
    std::byte* weights = bytes + weights_offset(layout, g);
    for (size_t i = 0; i < weight_bytes(layout); i++) {
      weights[i] = static_cast<std::byte>(numbers.bits());
    }
    if (has_sub(layout) || !has_super(layout)) continue;
    for (size_t i = 0; i < scale_bytes(layout); i++) weights[weight_bytes(layout) + i] &= std::byte{63};
  }
  return panel;
}

struct alignas(64) Sums {
  float at[kMaxSums];
};

// Inputs [begin, end).
struct Range {
  int begin, end;
};

Sums run_tile(const GemmKernels& kernels, Layout layout, const Tile& tile, const std::byte* panel, Range inputs,
              int count) {
  Sums sums{};
  TileArgs args{};
  args.rows = count;
  args.begin = inputs.begin;
  args.end = inputs.end;
  args.a = tile.bytes;
  args.a_pitch = kInputs * sizeof(float);
  args.panel = panel;
  args.sums = sums.at;
  kernels.tile[static_cast<size_t>(layout)](args);
  return sums;
}

bool tiles_agree(const GemmKernels& kernels, const GemmKernels& scalar, Layout layout, const Rows& rows,
                 const std::byte* panel) {
  for (int count = 1; count <= kRows; count++) {
    const Tile expected = prepare(scalar, layout, rows, count);
    const Tile prepared = prepare(kernels, layout, rows, count);
    for (int begin : {0, 96}) {
      const Sums want = run_tile(scalar, layout, expected, panel, {begin, kInputs}, count);
      const Sums got = run_tile(kernels, layout, prepared, panel, {begin, kInputs}, count);
      if (!same_numbers(want.at, got.at, kMaxSums)) return false;
    }
  }
  return true;
}

// As large as any.
struct alignas(64) PanelTile {
  std::byte bytes[kWideRows * kInputs / kGroup * kGroupRowBytes];
};

// Row r of a wide tile is row r % kRows.
PanelTile prepare_panel_tile(const KernelTable& table, bool wide, const Rows& rows, int count) {
  PanelTile tile{};
  const auto slots = static_cast<size_t>(wide ? wide_slots(count) : count);
  for (int r = 0; r < count; r++) {
    const auto index = static_cast<size_t>(r);
    table.gemm->quantise_row(rows.data() + r % kRows * kInputs, kInputs, tile.bytes + index * kGroup,
                             tile.bytes + slots * kGroup + index * sizeof(GroupMeta), slots * kGroupRowBytes);
  }
  return tile;
}

// Tiles of several rows, in two steps and two slices, against one scalar row after the other.
bool panel_tiles_agree(const KernelTable& table, const PanelKernels& kernels, Layout layout, const Rows& rows,
                       const std::byte* panel) {
  constexpr size_t kGroups = kInputs / kGroup;
  const GemmKernels& scalar = gemm_kernels_scalar();
  const auto row_sums = static_cast<size_t>(panel_columns(layout));
  const auto l = static_cast<size_t>(layout);
  const bool wide = &kernels != table.unpacked_int8;
  const int most = wide ? kWideRows : kTileRows;
  for (int count = 1; count <= most; count++) {
    const PanelTile tile = prepare_panel_tile(table, wide, rows, count);
    Sums got{};
    kernels.enter(layout);
    for (size_t first : {size_t{0}, size_t{3}}) {
      const size_t last = first == 0 ? 3 : kGroups;
      std::array<Line, kUnpackedBytes / sizeof(Line)> weights;
      kernels.unpack[l]({panel, first, last, weights[0].bytes});
      kernels.tile[l]({.rows = count,
                       .first = first,
                       .last = last,
                       .slice = kGroups / 2,
                       .a = tile.bytes,
                       .weights = weights[0].bytes,
                       .panel = panel,
                       .fetch = panel,
                       .fetch_bytes = 0,
                       .next_a = 0,
                       .sums = got.at});
    }
    kernels.leave();
    for (int r = 0; r < count; r++) {
      Rows last;
      std::memcpy(last.data() + last.size() - kInputs, rows.data() + r % kRows * kInputs, kInputs * sizeof(float));
      const Tile row = prepare(scalar, layout, last, 1);
      for (int s = 0; s < 2; s++) {
        Sums want{};
        scalar.tile[l]({.rows = 1,
                        .begin = s * kInputs / 2,
                        .end = (s + 1) * kInputs / 2,
                        .a = row.bytes,
                        .a_pitch = 0,
                        .panel = panel,
                        .prefetch = 0,
                        .sums = want.at});
        if (!same_numbers(want.at, got.at + static_cast<size_t>(s * count + r) * row_sums, row_sums)) return false;
      }
    }
  }
  return true;
}

// One row times a panel of bf16, in one slice or two, by the scalar kernels.
std::array<float, 64> wanted_row(const Rows& rows, const std::byte* panel, int slices, int r) {
  const GemmKernels& scalar = gemm_kernels_scalar();
  Rows last;
  std::memcpy(last.data() + last.size() - kInputs, rows.data() + r % kRows * kInputs, kInputs * sizeof(float));
  const Tile row = prepare(scalar, Layout::kBF16, last, 1);
  const Sums first = run_tile(scalar, Layout::kBF16, row, panel, {0, kInputs / slices}, 1);
  std::array<float, 64> sums;
  std::memcpy(sums.data(), first.at, sizeof sums);
  if (slices == 1) return sums;
  const Sums second = run_tile(scalar, Layout::kBF16, row, panel, {kInputs / 2, kInputs}, 1);
  for (size_t c = 0; c < sums.size(); c++) sums[c] = first.at[c] + second.at[c];
  return sums;
}

// Few rows; and full tiles of rows by twos, with one that is left. One slice is long enough to be cut, and its sums go
// straight to the results.
bool wide_panel_agrees(const WidePanelKernels& kernels, int slices, const Rows& rows, const std::byte* panel) {
  constexpr size_t kBlocks = kInputs / kGroup, kRowBytes = kGroup * sizeof(uint16_t);
  constexpr int kMost = 3 * kWideRows;
  std::vector<std::array<float, 64>> want;
  for (int r = 0; r < kRows; r++) want.push_back(wanted_row(rows, panel, slices, r));
  for (int count = 1; count <= kMost; count++) {
    std::vector<Line> tiles(kBlocks * kMost);
    const auto slots = static_cast<size_t>(wide_bf16_slots(count));
    for (int r = 0; r < count; r++) {
      std::byte* tile = tiles[static_cast<size_t>(r / kWideRows) * kBlocks * kWideRows].bytes;
      kernels.round_row(rows.data() + r % kRows * kInputs, kInputs,
                        tile + static_cast<size_t>(r % kWideRows) * kRowBytes, slots * kRowBytes);
    }
    std::vector<Line> sums(size_t{2} * 64 * 64 * sizeof(float) / sizeof(Line));
    std::vector<std::array<float, 64>> out(kMost);
    WidePanelArgs args{};
    args.rows = count;
    args.slots = wide_bf16_slots(count);
    args.blocks = kBlocks;
    args.a = tiles[0].bytes;
    args.panel = panel;
    args.sums = reinterpret_cast<float*>(sums[0].bytes);
    args.out.slices = slices;
    args.out.columns = 64;
    args.out.out = out[0].data();
    args.out.out_stride = 64;
    kernels.enter(args.slots);
    kernels.panel(args);
    kernels.leave();
    for (int r = 0; r < count; r++) {
      if (!same_numbers(want[static_cast<size_t>(r % kRows)].data(), out[static_cast<size_t>(r)].data(), 64))
        return false;
    }
  }
  return true;
}

bool finish_agrees(const GemmKernels& kernels, const GemmKernels& scalar, Numbers& numbers) {
  constexpr int kMost = 4;
  Sums sums{};
  for (float& x : sums.at) x = numbers.number();
  std::array<float, size_t{kMost} * 64> added;
  for (float& x : added) x = numbers.number();
  for (int slices : {1, 2, 4, 8}) {
    for (int columns : {64, 61, 33, 16, 5}) {
      const int width = columns > 32 ? 64 : 32;
      std::array<float, size_t{kMost} * 64> out[2] = {};
      const GemmKernels* each[2] = {&scalar, &kernels};
      for (int i = 0; i < 2; i++) {
        each[i]->finish({.sums = sums.at,
                         .slices = slices,
                         .slice_stride = static_cast<size_t>(kMost * width),
                         .rows = kMost,
                         .width = width,
                         .columns = columns,
                         .out = out[i].data(),
                         .out_stride = 64,
                         .addend = added.data(),
                         .addend_stride = 64,
                         .addend_scale = 0.3F,
                         .bias = added.data() + 64,
                         .residual = added.data(),
                         .residual_stride = 64});
      }
      if (!same_numbers(out[0].data(), out[1].data(), out[0].size())) return false;
    }
  }
  return true;
}

Result<void> differs(const char* what) {
  return fail(ErrorKind::kInternal,
              fmt::format("this CPU computes other bits than expected ({}); QUIRE_ISA=scalar is slow but safe", what));
}

}  // namespace

Result<void> gemm_self_check(const KernelTable& table) {
  set_flush_denormals();
  const GemmKernels& kernels = *table.gemm;
  const GemmKernels& scalar = gemm_kernels_scalar();
  Numbers numbers;
  const Rows rows = random_rows(numbers);
  for (Layout layout : {Layout::kInt8, Layout::kF16}) {  // for bf16 weights, the tiles show it
    if (prepare(scalar, layout, rows, kRows) == prepare(kernels, layout, rows, kRows)) continue;
    return differs(layout == Layout::kInt8 ? "activations to int8" : "activations to bf16");
  }
  for (int l = 0; l < kLayouts; l++) {
    const auto layout = static_cast<Layout>(l);
    const std::vector<Line> panel = random_panel(layout, numbers);
    if (!tiles_agree(kernels, scalar, layout, rows, panel[0].bytes)) return differs(kNames[l]);
    for (const PanelKernels* several : {table.unpacked_int8, table.wide_int8}) {
      if (several == nullptr || several->tile[l] == nullptr) continue;
      if (!panel_tiles_agree(table, *several, layout, rows, panel[0].bytes)) return differs(kNames[l]);
    }
    if (layout == Layout::kBF16 && table.wide_bf16 != nullptr) {
      for (int slices : {1, 2}) {
        if (!wide_panel_agrees(*table.wide_bf16, slices, rows, panel[0].bytes)) return differs(kNames[l]);
      }
    }
  }
  if (!finish_agrees(kernels, scalar, numbers)) return differs("sums of slices");
  return {};
}

}  // namespace quire::kernels
