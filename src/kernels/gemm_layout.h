// How packed weights lie in memory: panels of 32 or 64 output columns, each one contiguous stream over K.
//
//   kF32       [K][64] fp32
//   kF16       [K][64] fp16
//   kBF16      [K / 2][64][2] bf16, K filled with zeros up to whole blocks of 32: an even and an odd input side by
//              side, as matrix instructions want them
//   integers   panels of 32 columns; for each group of 32 inputs first the weights, then the scales:
//     2 bit    [2][32 columns][4 bytes]: bits 2 b and 2 b + 1 of byte j in half h are input 16 h + 4 b + j
//     3 bit    the low two as 2 bit, then [32 columns][4 bytes]: bit b of byte j is the third of input 4 b + j
//     4 bit    [4 steps of 8 inputs][32 columns][4 bytes]; a byte holds input k (low nibble) and k + 4 (high nibble)
//     5 bit    the low four as 4 bit, then the fifth as the third of 3 bit
//     6 bit    the low four as 4 bit, then the upper two as 2 bit
//     8 bit    [8 steps of 4 inputs][32 columns][4 bytes]
//     weights are unsigned, the value plus weight_offset(); or numbers of the value in a table
//     scales   plain: fp16 d[32] (kInt4Mx: bf16), with a minimum then fp16 m[32]
//              kInt4Super, kInt5Super: u8 factors of d [32], u8 factors of dmin [32]
//              kInt4TableSuper: int8 factors of d [32], 32 bytes of nothing
//              kInt3Sub, kInt6Sub: int8 factors of d for inputs 0..15 [32], for inputs 16..31 [32]
//              kInt2Sub: the same, of 4 bits; the upper 4 are factors of dmin
//     super    before every eighth group of those: fp16 d[32], and with a minimum fp16 dmin[32]
//
// Every piece of an integer panel is a multiple of 64 bytes, so no vector load crosses a cache line. Columns past N are
// zero bytes; what they sum up to is never written.
//
// Included by files that are compiled for one instruction set, so every function here has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/format.h"

namespace quire::kernels {

enum class Layout : uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt2Sub,         // Q2_K: d * sc * q - dmin * mn, sc and mn for 16 inputs
  kInt3Sub,         // Q3_K: d * sc * (q - 4), sc for 16 inputs
  kInt4,            // Q4_0: d * (q - 8)
  kInt4Min,         // Q4_1: d * q + m
  kInt4Super,       // Q4_K: (d * sc) * q - dmin * mn
  kInt4Table,       // IQ4_NL: d * kIq4Values[q]
  kInt4TableSuper,  // IQ4_XS: (d * sc) * kIq4Values[q]
  kInt4Mx,          // MXFP4: d * kE2m1Values[q], d a power of two
  kInt5,            // Q5_0: d * (q - 16)
  kInt5Min,         // Q5_1: d * q + m
  kInt5Super,       // Q5_K: (d * sc) * q - dmin * mn
  kInt6Sub,         // Q6_K: d * sc * (q - 32), sc for 16 inputs
  kInt8,            // Q8_0: d * (q - 128)
};

inline constexpr int kLayouts = 16;
inline constexpr int kGroup = 32;       // inputs that share a weight scale and an activation scale; a block of bf16
inline constexpr int kSuperGroups = 8;  // groups of a super-block
inline constexpr int kMaxSlices = 8;    // parts of K, rule 11

static constexpr bool is_integer(Layout l) { return l >= Layout::kInt2Sub; }
// Bits of a weight of an integer layout.
static constexpr int weight_bits(Layout l) {
  if (l <= Layout::kInt3Sub) return l == Layout::kInt2Sub ? 2 : 3;
  if (l <= Layout::kInt4Mx) return 4;
  return l <= Layout::kInt5Super ? 5 : l == Layout::kInt6Sub ? 6 : 8;
}
// Each half of a group has a factor.
static constexpr bool has_sub(Layout l) {
  return l == Layout::kInt2Sub || l == Layout::kInt3Sub || l == Layout::kInt6Sub;
}
static constexpr bool has_super(Layout l) {
  return l == Layout::kInt4Super || l == Layout::kInt4TableSuper || l == Layout::kInt5Super || has_sub(l);
}
static constexpr bool has_min(Layout l) {
  return l == Layout::kInt2Sub || l == Layout::kInt4Min || l == Layout::kInt4Super || l == Layout::kInt5Min ||
         l == Layout::kInt5Super;
}
static constexpr bool has_table(Layout l) { return l >= Layout::kInt4Table && l <= Layout::kInt4Mx; }
static constexpr const int8_t* table_of(Layout l) {
  return l == Layout::kInt4Mx ? weights::kE2m1Values : weights::kIq4Values;
}
// What is added to a weight to multiply it unsigned, and to store it if there is no table.
static constexpr int weight_offset(Layout l) {
  switch (l) {
    case Layout::kInt3Sub:
      return 4;
    case Layout::kInt4:
      return 8;
    case Layout::kInt4Mx:
    case Layout::kInt5:
      return 16;
    case Layout::kInt6Sub:
      return 32;
    case Layout::kInt4Table:
    case Layout::kInt4TableSuper:
    case Layout::kInt8:
      return 128;
    default:
      return 0;
  }
}

static constexpr int panel_columns(Layout l) { return is_integer(l) ? 32 : 64; }
// K as it is packed: blocks of bf16 are whole.
static constexpr size_t padded_inputs(Layout l, size_t k) {
  return l == Layout::kBF16 ? (k + kGroup - 1) / kGroup * kGroup : k;
}

static constexpr size_t weight_bytes(Layout l) { return static_cast<size_t>(weight_bits(l)) * 128; }
static constexpr size_t scale_bytes(Layout l) { return has_min(l) && !has_super(l) ? 128 : 64; }
static constexpr size_t super_bytes(Layout l) { return !has_super(l) ? 0 : has_min(l) ? 128 : 64; }
static constexpr size_t group_bytes(Layout l) {
  return l == Layout::kBF16 ? size_t{kGroup} * 64 * 2 : weight_bytes(l) + scale_bytes(l);
}

// Start of group g in an integer panel, of its super-block's header if g is the first of one; of block g of bf16.
static constexpr size_t group_offset(Layout l, size_t g) {
  return g * group_bytes(l) + (g + kSuperGroups - 1) / kSuperGroups * super_bytes(l);
}
// Start of the weights of group g, and of the header of its super-block.
static constexpr size_t weights_offset(Layout l, size_t g) {
  return group_offset(l, g) + (g % kSuperGroups == 0 ? super_bytes(l) : 0);
}
static constexpr size_t super_offset(Layout l, size_t g) { return group_offset(l, g / kSuperGroups * kSuperGroups); }

// The value of weight k (0..31) of column c of a group. Here and not in a kernel, as more than one reads it.
static inline int weight_value(Layout l, const std::byte* weights, int c, int k) {
  const auto byte = [&](int row, int column) { return static_cast<int>(weights[row * 128 + column * 4 + k % 4]); };
  const auto pair = [&](int row) { return byte(row + k / 16, c) >> (k % 16 / 4 * 2) & 3; };
  const auto bit = [&](int row) { return byte(row, c) >> (k / 4) & 1; };
  const int bits = weight_bits(l);
  if (bits == 8) return byte(k / 4, c) - weight_offset(l);
  if (bits < 4) return (bits == 3 ? pair(0) | bit(2) << 2 : pair(0)) - weight_offset(l);
  const int low = byte(k / 8, c) >> (k % 8 < 4 ? 0 : 4) & 15;
  if (has_table(l)) return table_of(l)[low];
  return (low | (bits == 5 ? bit(4) << 4 : bits == 6 ? pair(4) << 4 : 0)) - weight_offset(l);
}

static constexpr size_t panel_bytes(Layout l, size_t k) {
  if (is_integer(l)) return group_offset(l, k / kGroup);
  return padded_inputs(l, k) * static_cast<size_t>(panel_columns(l)) * (l == Layout::kF32 ? 4 : 2);
}

}  // namespace quire::kernels
