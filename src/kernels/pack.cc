#include "kernels/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/pack_blocks.h"

namespace quire::kernels {
namespace {

using weights::WeightFormat;

constexpr int64_t kMostRows = int64_t{1} << 30;

// Inputs that must stay together in a slice: a file's block, and an activation group.
int block_inputs(WeightFormat format) { return std::max(kGroup, weights::format_info(format).block_elements); }

int rows_of(const PackSource& source) {
  return source.rows > 0 ? source.rows : static_cast<int>(source.tensor->shape[0]);
}

// Finds the blocks of a packed row, which must be one, among the stacked sources.
class Rows {
 public:
  explicit Rows(std::span<const PackSource> sources) : sources_(sources) {}

  struct Place {
    WeightFormat format;
    std::span<const std::byte> blocks;
    bool made;  // in the scratch
  };
  // `scratch` is for rows that are made.
  Place find(int n, std::span<std::byte> scratch) const {
    size_t i = 0;
    while (n >= count(i)) n -= count(i++);
    const PackSource& source = sources_[i];
    const int from = source.source_row ? source.source_row(n) : n;
    QUIRE_CHECK(from >= 0 && from < source.tensor->shape[0]);
    return {source.tensor->format, source.tensor->row(from, scratch), source.tensor->made != nullptr};
  }

  size_t scratch_bytes() const {
    size_t most = 0;
    for (const PackSource& source : sources_)
      if (source.tensor->made != nullptr) most = std::max(most, source.tensor->row_bytes());
    return most;
  }

 private:
  int count(size_t source) const { return rows_of(sources_[source]); }

  std::span<const PackSource> sources_;
};

// Bits [from, from + width) of weights, one or two of them, as column c of a group.
void write_bits(const uint8_t* weights, int from, int width, int c, std::byte* out) {
  const int in_byte = 8 / width;  // weights 4 apart share a byte
  const int mask = (1 << width) - 1;
  for (int k = 0; k < kGroup; k++) {
    std::byte& byte = out[k / (4 * in_byte) * 128 + c * 4 + k % 4];
    byte |= static_cast<std::byte>(((weights[k] >> from) & mask) << (width * (k / 4 % in_byte)));
  }
}

// Nibbles, or whole bytes.
void write_low_bits(int bits, const uint8_t* from, int c, std::byte* weights) {
  for (int step = 0; step < 4; step++) {
    uint32_t low;
    uint32_t high;
    std::memcpy(&low, from + step * 8, 4);
    std::memcpy(&high, from + step * 8 + 4, 4);
    if (bits < 8) {
      constexpr uint32_t kNibbles = 0x0f0f0f0f;
      low = (low & kNibbles) | (high & kNibbles) << 4;
      std::memcpy(weights + step * 128 + c * 4, &low, 4);
    } else {
      std::memcpy(weights + step * 256 + c * 4, &low, 4);
      std::memcpy(weights + step * 256 + 128 + c * 4, &high, 4);
    }
  }
}

void write_weights(int bits, const uint8_t* from, int c, std::byte* weights) {
  if (bits < 4) {
    write_bits(from, 0, 2, c, weights);
    if (bits == 3) write_bits(from, 2, 1, c, weights + 256);
    return;
  }
  write_low_bits(bits, from, c, weights);
  if (bits == 5 || bits == 6) write_bits(from, 4, bits - 4, c, weights + 512);
}

// Writes one decoded group as column c of its place in a panel, which is still zero there.
void write_group(Layout layout, const DecodedGroup& group, int c, int g, std::byte* panel) {
  const auto index = static_cast<size_t>(g);
  if (has_super(layout) && g % kSuperGroups == 0) {
    std::byte* header = panel + super_offset(layout, index);
    std::memcpy(header + 2 * c, &group.d, 2);
    if (has_min(layout)) std::memcpy(header + 64 + 2 * c, &group.m, 2);
  }
  std::byte* weights = panel + weights_offset(layout, index);
  write_weights(weight_bits(layout), group.weights, c, weights);
  std::byte* scales = weights + weight_bytes(layout);
  if (has_super(layout)) {
    std::memcpy(scales + c, &group.factor[0], 1);
    std::memcpy(scales + 32 + c, &group.factor[1], 1);
  } else {
    std::memcpy(scales + 2 * c, &group.d, 2);
    if (has_min(layout)) std::memcpy(scales + 64 + 2 * c, &group.m, 2);
  }
}

struct PanelJob {
  Layout layout;
  int outputs;
  int inputs;
  const Rows& rows;
};

// What one worker needs beside the panel that it writes.
struct Scratch {
  std::span<float> widened;   // a row; empty for integers
  std::span<std::byte> made;  // the blocks of a row
};

void pack_integer_panel(const PanelJob& job, int p, const Scratch& scratch, std::byte* panel) {
  constexpr int kColumns = 32;
  const int columns = std::min(kColumns, job.outputs - p * kColumns);
  for (int c = 0; c < columns; c++) {
    const Rows::Place place = job.rows.find(p * kColumns + c, scratch.made);
    for (int g = 0; g < job.inputs / kGroup; g++) {
      write_group(job.layout, decode_group(place.format, place.blocks.data(), g), c, g, panel);
    }
  }
}

// Element (k, c) of a float panel.
std::byte* float_place(Layout layout, std::byte* panel, int k, int c) {
  const auto column = static_cast<size_t>(c);
  const auto row = static_cast<size_t>(k);
  if (layout == Layout::kF32) return panel + (row * 64 + column) * 4;
  if (layout == Layout::kF16) return panel + (row * 64 + column) * 2;
  return panel + (row / 2 * 64 + column) * 4 + row % 2 * 2;
}

void pack_float_column(Layout layout, const Rows::Place& place, int c, std::span<float> widened, std::byte* panel) {
  const int inputs = static_cast<int>(widened.size());
  weights::dequantise(place.format, place.blocks, widened);
  for (int k = 0; k < inputs; k++) {
    const float value = widened[static_cast<size_t>(k)];
    if (layout == Layout::kF32) {
      std::memcpy(float_place(layout, panel, k, c), &value, 4);
    } else {
      const uint16_t rounded = float_to_bf16(value);
      std::memcpy(float_place(layout, panel, k, c), &rounded, 2);
    }
  }
}

constexpr int kFloatColumns = 64;
using ColumnRows = std::array<const std::byte*, kFloatColumns>;  // null: of a column that is made otherwise

// Units of kBytes, `count` in each row, become columns: tile by tile, so that what is written stays in the cache.
template <size_t kBytes>
void transpose(const ColumnRows& rows, int count, std::byte* panel) {
  constexpr int kTile = 64 / kBytes;
  for (int first = 0; first < count; first += kTile) {
    const int end = std::min(first + kTile, count);
    for (size_t c = 0; c < kFloatColumns; c++) {
      if (rows[c] == nullptr) continue;
      for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); i++)
        std::memcpy(panel + (i * kFloatColumns + c) * kBytes, rows[c] + i * kBytes, kBytes);
    }
  }
}

// Rows of two bytes a number that are packed as they are in the file.
void pack_rows(Layout layout, const ColumnRows& rows, int inputs, std::byte* panel) {
  if (layout == Layout::kF16) return transpose<2>(rows, inputs, panel);
  transpose<4>(rows, inputs / 2, panel);
  if (inputs % 2 == 0) return;
  for (int c = 0; c < kFloatColumns; c++)
    if (const std::byte* row = rows[static_cast<size_t>(c)]; row != nullptr)
      std::memcpy(float_place(layout, panel, inputs - 1, c), row + (inputs - 1) * 2, 2);
}

void pack_float_panel(const PanelJob& job, int p, const Scratch& scratch, std::byte* panel) {
  const int columns = std::min(kFloatColumns, job.outputs - p * kFloatColumns);
  ColumnRows as_they_are = {};
  for (int c = 0; c < columns; c++) {
    const Rows::Place place = job.rows.find(p * kFloatColumns + c, scratch.made);
    if (job.layout == Layout::kF32 || weights::format_info(place.format).block_bytes != 2) {
      pack_float_column(job.layout, place, c, scratch.widened, panel);
    } else if (place.made) {  // the next row takes its place
      ColumnRows alone = {};
      alone[static_cast<size_t>(c)] = place.blocks.data();
      pack_rows(job.layout, alone, job.inputs, panel);
    } else {
      as_they_are[static_cast<size_t>(c)] = place.blocks.data();
    }
  }
  if (job.layout != Layout::kF32) pack_rows(job.layout, as_they_are, job.inputs, panel);
}

Result<void> check_source(const weights::Tensor& tensor, const weights::Tensor& first, WeightTarget target) {
  if (tensor.shape.size() != 2) {
    return fail(ErrorKind::kUnsupported, fmt::format("tensor {} is {}, not a matrix", tensor.name, describe(tensor)),
                tensor.name);
  }
  if (tensor.shape[0] < 1 || tensor.shape[1] < 1 || tensor.shape[0] > kMostRows || tensor.shape[1] > kMostRows) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("tensor {} is {}; a matrix has 1 to {} rows and columns", tensor.name, describe(tensor), kMostRows),
        tensor.name);
  }
  if (tensor.shape[1] != first.shape[1]) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("tensors {} {} and {} {} cannot be packed together: their inner sizes differ", first.name,
                            describe(first), tensor.name, describe(tensor)),
                tensor.name);
  }
  if (layout_for(tensor.format, target) != layout_for(first.format, target)) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("tensors {} {} and {} {} cannot be packed together: their formats differ", first.name,
                            describe(first), tensor.name, describe(tensor)),
                tensor.name);
  }
  const int block = weights::format_info(tensor.format).block_elements;
  if (tensor.shape[1] % block != 0) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("tensor {} is {}; its inner size must be a multiple of {}", tensor.name, describe(tensor), block),
        tensor.name);
  }
  if (tensor.made == nullptr && tensor.data.size() != tensor.bytes()) {
    return fail(ErrorKind::kCorruptFile,
                fmt::format("tensor {} {} has {} bytes of data instead of {}", tensor.name, describe(tensor),
                            tensor.data.size(), tensor.bytes()),
                tensor.name);
  }
  return {};
}

Result<void> check_slices(const weights::Tensor& tensor, int slices) {
  const bool power = slices == 1 || slices == 2 || slices == 4 || slices == 8;
  const int unit = slices == 1 ? 1 : block_inputs(tensor.format);
  if (power && tensor.shape[1] % (int64_t{slices} * unit) == 0) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("tensor {} {} cannot be cut into {} slices; 1, 2, 4 or 8 slices of whole multiples of {} can",
                          tensor.name, describe(tensor), slices, unit),
              tensor.name);
}

}  // namespace

PackedMatrix::PackedMatrix(Layout layout, int outputs, int inputs, int slices, Buffer storage)
    : layout_(layout),
      outputs_(outputs),
      inputs_(inputs),
      slices_(slices),
      stride_(panel_bytes(layout, static_cast<size_t>(inputs))),
      storage_(std::move(storage)) {}

Layout layout_for(WeightFormat format, WeightTarget target) {
  if (target == WeightTarget::kF32) return Layout::kF32;
  if (format == WeightFormat::kF16) return Layout::kF16;
  if (target == WeightTarget::kBF16) return Layout::kBF16;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kAffine4:  // integers without a layout of their own: rounded
    case WeightFormat::kAffine8:
      return Layout::kBF16;
    case WeightFormat::kQ8_0:
      return Layout::kInt8;
    case WeightFormat::kQ5_0:
      return Layout::kInt5;
    case WeightFormat::kQ2_K:
      return Layout::kInt2Sub;
    case WeightFormat::kQ3_K:
      return Layout::kInt3Sub;
    case WeightFormat::kIQ4_NL:
      return Layout::kInt4Table;
    case WeightFormat::kIQ4_XS:
      return Layout::kInt4TableSuper;
    case WeightFormat::kMXFP4:
      return Layout::kInt4Mx;
    case WeightFormat::kQ4_0:
      return Layout::kInt4;
    case WeightFormat::kQ4_1:
      return Layout::kInt4Min;
    case WeightFormat::kQ5_1:
      return Layout::kInt5Min;
    case WeightFormat::kQ4_K:
      return Layout::kInt4Super;
    case WeightFormat::kQ5_K:
      return Layout::kInt5Super;
    case WeightFormat::kQ6_K:
      return Layout::kInt6Sub;
  }
  return Layout::kBF16;
}

size_t packed_bytes(const weights::Tensor& tensor, WeightTarget target) {
  const Layout layout = layout_for(tensor.format, target);
  const auto rows = static_cast<size_t>(tensor.shape[0]), columns = static_cast<size_t>(panel_columns(layout));
  return (rows + columns - 1) / columns * panel_bytes(layout, static_cast<size_t>(tensor.shape[1]));
}

int slice_count(WeightFormat format, int inputs, int unit) {
  QUIRE_CHECK(inputs > 0 && unit > 0);
  int slices = kMaxSlices;
  while (slices > 1 && (inputs % (slices * block_inputs(format)) != 0 || inputs % (int64_t{slices} * unit) != 0)) {
    slices /= 2;
  }
  return slices;
}

Result<PackedMatrix> pack(std::span<const PackSource> sources, WeightTarget target, int slices, Allocator& allocator,
                          ThreadPool& pool) {
  QUIRE_CHECK(!sources.empty());
  const weights::Tensor& first = *sources.front().tensor;
  int64_t outputs = 0;
  for (const PackSource& source : sources) {
    if (auto ok = check_source(*source.tensor, first, target); !ok) return std::unexpected(ok.error());
    if (auto ok = check_slices(*source.tensor, slices); !ok) return std::unexpected(ok.error());
    outputs += rows_of(source);
  }
  if (outputs > kMostRows) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("tensor {} and those beside it have {} rows; at most {} can be "
                            "packed together",
                            first.name, outputs, kMostRows),
                first.name);
  }

  const Layout layout = layout_for(first.format, target);
  const int inputs = static_cast<int>(first.shape[1]);
  const int panels = static_cast<int>((outputs + panel_columns(layout) - 1) / panel_columns(layout));
  const size_t stride = panel_bytes(layout, static_cast<size_t>(inputs));
  auto storage = allocator.allocate_beside(static_cast<size_t>(panels) * stride);
  if (!storage) return std::unexpected(storage.error());
  const Rows rows(sources);
  const size_t widened = is_integer(layout) ? 0 : static_cast<size_t>(inputs);
  const size_t worker_bytes = (widened * sizeof(float) + rows.scratch_bytes() + 63) / 64 * 64;
  Allocator working_memory;  // not `allocator`, whose memory may lie in a file
  auto scratch = working_memory.allocate(static_cast<size_t>(pool.size()) * worker_bytes);
  if (!scratch) return std::unexpected(scratch.error());

  const PanelJob job{layout, static_cast<int>(outputs), inputs, rows};
  pool.run([&](int worker) {
    std::byte* mine = scratch->data() + static_cast<size_t>(worker) * worker_bytes;
    const Scratch own{{reinterpret_cast<float*>(mine), widened},
                      {mine + widened * sizeof(float), rows.scratch_bytes()}};
    const auto begin = static_cast<int>(int64_t{panels} * worker / pool.size());
    const auto end = static_cast<int>(int64_t{panels} * (worker + 1) / pool.size());
    for (int p = begin; p < end; p++) {
      std::byte* panel = storage->data() + static_cast<size_t>(p) * stride;
      if (is_integer(layout)) {
        pack_integer_panel(job, p, own, panel);
      } else {
        pack_float_panel(job, p, own, panel);
      }
    }
  });
  return PackedMatrix(layout, static_cast<int>(outputs), inputs, slices, std::move(*storage));
}

}  // namespace quire::kernels
