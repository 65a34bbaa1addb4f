#include "kernels/gemm_self_check.h"

#include <fmt/format.h>

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
constexpr int kRows = kMaxTileRows;
constexpr const char* kNames[kLayouts] = {"f32",        "f16",  "bf16",     "int4",       "int4 min",
                                          "int4 super", "int8", "int8 min", "int8 super", "int8 sub"};

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

bool same_meta(const GroupMeta& a, const GroupMeta& b) {
  return same_number(a.scale, b.scale) && same_number(a.scaled_sum, b.scaled_sum) && a.minus_8_sum == b.minus_8_sum &&
         a.minus_128_sum == b.minus_128_sum && a.minus_32_sum[0] == b.minus_32_sum[0] &&
         a.minus_32_sum[1] == b.minus_32_sum[1];
}

struct alignas(64) Line {
  std::byte bytes[64];
};

struct Rows {
  std::array<float, size_t{kRows} * kInputs> f32;
  std::array<uint16_t, size_t{kRows} * kInputs> bf16;
  std::array<int8_t, size_t{kRows} * kInputs> int8;
  std::array<GroupMeta, size_t{kRows} * kInputs / kGroup> meta;
};

void prepare(const GemmKernels& kernels, Rows& rows) {
  for (int r = 0; r < kRows; r++) {
    const float* x = rows.f32.data() + r * kInputs;
    kernels.round_row_bf16(x, kInputs, rows.bf16.data() + r * kInputs);
    kernels.quantise_row(x, kInputs, rows.int8.data() + r * kInputs, rows.meta.data() + r * (kInputs / kGroup));
  }
}

// Rows of numbers, a zero group, and in the last row NaN and infinities.
Rows random_rows(Numbers& numbers) {
  Rows rows{};
  for (float& x : rows.f32) x = numbers.number();
  for (size_t k = 0; k < kGroup; k++) rows.f32[k] = 0;
  for (size_t k = 0; k < 96; k += 7)
    rows.f32[rows.f32.size() - kInputs + k] = std::bit_cast<float>(0x7f800000U + static_cast<uint32_t>(k % 2));
  return rows;
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
      if (has_super(layout) && !is_int4(layout)) weights[i] &= std::byte{63};
      if (layout == Layout::kInt8Min || layout == Layout::kInt8Super) weights[i] &= std::byte{31};
    }
    if (layout == Layout::kInt8Sub || !has_super(layout)) continue;
    for (size_t i = 0; i < scale_bytes(layout); i++) weights[weight_bytes(layout) + i] &= std::byte{63};
  }
  return panel;
}

struct alignas(64) Sums {
  float at[kMaxSlices * kRows * 64];
};

void run_tile(const GemmKernels& kernels, Layout layout, const Rows& rows, const std::byte* panel, int begin, int first,
              int count, float* sums) {
  TileArgs args{};
  args.rows = count;
  args.begin = begin;
  args.end = kInputs;
  args.a_stride = kInputs;
  args.meta = rows.meta.data() + first * (kInputs / kGroup);
  args.meta_stride = kInputs / kGroup;
  args.panel = panel;
  args.sums = sums;
  args.a = rows.int8.data() + first * kInputs;
  if (layout == Layout::kF32) args.a = rows.f32.data() + first * kInputs;
  if (layout == Layout::kF16 || layout == Layout::kBF16) args.a = rows.bf16.data() + first * kInputs;
  kernels.tile[static_cast<size_t>(layout)](args);
}

bool tiles_agree(const GemmKernels& kernels, const GemmKernels& scalar, Layout layout, const Rows& rows,
                 const std::byte* panel) {
  const int width = panel_columns(layout);
  Sums want;
  Sums got;
  for (int begin : {0, 96}) {
    for (int r = 0; r < kRows; r++) run_tile(scalar, layout, rows, panel, begin, r, 1, want.at + r * width);
    for (int count = 1; count <= kernels.tile_rows[static_cast<size_t>(layout)]; count++) {
      // The last rows, so that the one that is not finite is always among them.
      const int first = kRows - count;
      run_tile(kernels, layout, rows, panel, begin, first, count, got.at);
      if (!same_numbers(want.at + first * width, got.at, static_cast<size_t>(count * width))) return false;
    }
  }
  return true;
}

bool finish_agrees(const GemmKernels& kernels, const GemmKernels& scalar, Numbers& numbers) {
  constexpr int kMost = 4;
  Sums sums;
  for (float& x : sums.at) x = numbers.number();
  std::array<float, size_t{kMost} * 64> added;
  for (float& x : added) x = numbers.number();
  for (int slices : {1, 2, 4, 8}) {
    for (int columns : {64, 61, 33, 16, 5}) {
      const int width = columns > 32 ? 64 : 32;
      std::array<float, size_t{kMost} * 64> out[2] = {};
      const GemmKernels* each[2] = {&scalar, &kernels};
      for (int i = 0; i < 2; i++) {
        Sums copy = sums;
        each[i]->finish({.sums = copy.at,
                         .slices = slices,
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
  Rows want = random_rows(numbers);
  Rows got = want;
  prepare(scalar, want);
  prepare(kernels, got);
  if (want.bf16 != got.bf16) return differs("rounding to bf16");
  if (want.int8 != got.int8) return differs("activations to int8");
  for (size_t i = 0; i < want.meta.size(); i++) {
    if (!same_meta(want.meta[i], got.meta[i])) return differs("activation scales");
  }
  for (int l = 0; l < kLayouts; l++) {
    const auto layout = static_cast<Layout>(l);
    const std::vector<Line> panel = random_panel(layout, numbers);
    if (!tiles_agree(kernels, scalar, layout, want, panel[0].bytes)) return differs(kNames[l]);
  }
  if (!finish_agrees(kernels, scalar, numbers)) return differs("sums of slices");
  return {};
}

}  // namespace quire::kernels
