// The number formats that tensors have in files, and their exact meaning in fp32.
//
// A format is a sequence of blocks: `block_elements` consecutive elements in `block_bytes` bytes, little-endian, as
// GGML lays them out. Plain floats are blocks of one. Quantised blocks run along the innermost dimension, so a row is
// always whole blocks.
//
// The affine formats lie in no file: they are the rows of matrices whose files keep integers, scales and zero points
// apart (quantised_matrix.h). A block of 32 is an fp32 scale d, a zero point z of one byte, and integers q of 4 or 8
// bits, unsigned, in the order of Q4_0 and Q8_0; its values are d * (q - z).
//
// All functions are pure. dequantise() is the reference that packed weights and kernels are tested against, not a fast
// path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::weights {

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kAffine4,
  kAffine8,
};

inline constexpr int kWeightFormats = 18;

// What the nibbles of IQ4_NL and IQ4_XS mean, and twice what those of MXFP4 do.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kE2m1Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of the power of two that a byte of MXFP4 names, as the bits of a bf16, which hold it exactly. Below the smallest
// normal number it counts as zero.
uint16_t e8m0_half_bits(uint8_t e);

struct FormatInfo {
  const char* name;  // as GGML spells it where it has it, for example "Q4_K"
  int block_elements;
  int block_bytes;
};

const FormatInfo& format_info(WeightFormat format);
bool is_quantised(WeightFormat format);

// Widens whole blocks to fp32, with the bits of GGML's dequantize_row, also when denormals are flushed; but MXFP4's
// scales below the smallest normal number count as zero. Affine values are rounded once, in the product; one
// that is denormal, or whose scale is, is zero where denormals are flushed.
// out.size() must be a multiple of block_elements, and `blocks` exactly the blocks of that many elements.
void dequantise(WeightFormat format, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace quire::weights
