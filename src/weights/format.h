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
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kAffine4,
  kAffine8,
};

inline constexpr int kWeightFormats = 13;

struct FormatInfo {
  const char* name;  // as GGML spells it where it has it, for example "Q4_K"
  int block_elements;
  int block_bytes;
};

const FormatInfo& format_info(WeightFormat format);
bool is_quantised(WeightFormat format);

// Widens whole blocks to fp32, with the bits of GGML's dequantize_row, also when denormals are flushed. Affine values
// are rounded once, in the product.
// out.size() must be a multiple of block_elements, and `blocks` exactly the blocks of that many elements.
void dequantise(WeightFormat format, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace quire::weights
