// How packed weights lie in memory: panels of 32 or 64 output columns, each one contiguous stream over K.
//
//   kF32       [K][64] fp32
//   kF16       [K][64] fp16
//   kBF16      [K / 2][64][2] bf16, K filled with zeros up to whole blocks of 32: an even and an odd input side by
//   side,
//              as matrix instructions want them
//   integers   panels of 32 columns; for each group of 32 inputs first the weights, then the scales:
//     4 bit    [4 steps of 8 inputs][32 columns][4 bytes]; a byte holds input k (low nibble) and k + 4 (high nibble)
//     8 bit    [8 steps of 4 inputs][32 columns][4 bytes]
//     weights are unsigned: the value plus weight_offset()
//     scales   plain: fp16 d[32], with a minimum then fp16 m[32]
//              kInt4Super, kInt8Super: u8 factors of d [32], u8 factors of dmin [32]
//              kInt8Sub: int8 factors of d for inputs 0..15 [32], for inputs 16..31 [32]
//     super    before every eighth group of those: fp16 d[32], and (not kInt8Sub) fp16 dmin[32]
//
// Every piece of an integer panel is a multiple of 64 bytes, so no vector load crosses a cache line. Columns past N are
// zero bytes; what they sum up to is never written.
//
// Included by files that are compiled for one instruction set, so every function here has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::kernels {

enum class Layout : uint8_t {
  kF32,
  kF16,
  kBF16,
  kInt4,       // Q4_0: d * (q - 8)
  kInt4Min,    // Q4_1: d * q + m
  kInt4Super,  // Q4_K: (d * sc) * q - dmin * mn
  kInt8,       // Q8_0, Q5_0: d * q
  kInt8Min,    // Q5_1: d * q + m
  kInt8Super,  // Q5_K: (d * sc) * q - dmin * mn
  kInt8Sub,    // Q6_K: d * sc * q, sc for 16 inputs
};

inline constexpr int kLayouts = 10;
inline constexpr int kGroup = 32;       // inputs that share a weight scale and an activation scale; a block of bf16
inline constexpr int kSuperGroups = 8;  // groups of a super-block
inline constexpr int kMaxSlices = 8;    // parts of K, rule 11

static constexpr bool is_integer(Layout l) { return l >= Layout::kInt4; }
static constexpr bool is_int4(Layout l) { return l >= Layout::kInt4 && l <= Layout::kInt4Super; }
static constexpr bool has_super(Layout l) {
  return l == Layout::kInt4Super || l == Layout::kInt8Super || l == Layout::kInt8Sub;
}
static constexpr bool has_min(Layout l) {
  return l == Layout::kInt4Min || l == Layout::kInt8Min || l == Layout::kInt4Super || l == Layout::kInt8Super;
}
// What is added to a weight to store it unsigned.
static constexpr int weight_offset(Layout l) {
  return l == Layout::kInt4 ? 8 : l == Layout::kInt8 ? 128 : l == Layout::kInt8Sub ? 32 : 0;
}

static constexpr int panel_columns(Layout l) { return is_integer(l) ? 32 : 64; }
// K as it is packed: blocks of bf16 are whole.
static constexpr size_t padded_inputs(Layout l, size_t k) {
  return l == Layout::kBF16 ? (k + kGroup - 1) / kGroup * kGroup : k;
}

static constexpr size_t weight_bytes(Layout l) { return is_int4(l) ? 512 : 1024; }
static constexpr size_t scale_bytes(Layout l) { return l == Layout::kInt4Min || l == Layout::kInt8Min ? 128 : 64; }
static constexpr size_t super_bytes(Layout l) { return !has_super(l) ? 0 : l == Layout::kInt8Sub ? 64 : 128; }
static constexpr size_t group_bytes(Layout l) { return weight_bytes(l) + scale_bytes(l); }

// Start of group g in an integer panel; of its super-block's header if g is the first of one.
static constexpr size_t group_offset(Layout l, size_t g) {
  return g * group_bytes(l) + (g + kSuperGroups - 1) / kSuperGroups * super_bytes(l);
}
// Start of the weights of group g, and of the header of its super-block.
static constexpr size_t weights_offset(Layout l, size_t g) {
  return group_offset(l, g) + (g % kSuperGroups == 0 ? super_bytes(l) : 0);
}
static constexpr size_t super_offset(Layout l, size_t g) { return group_offset(l, g / kSuperGroups * kSuperGroups); }

static constexpr size_t panel_bytes(Layout l, size_t k) {
  if (is_integer(l)) return group_offset(l, k / kGroup);
  return padded_inputs(l, k) * static_cast<size_t>(panel_columns(l)) * (l == Layout::kF32 ? 4 : 2);
}

}  // namespace quire::kernels
