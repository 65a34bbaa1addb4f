// The number formats that tensors have in files, and their exact meaning in fp32.
//
// A format is a sequence of blocks: `block_elements` consecutive elements in `block_bytes` bytes, little-endian, as
// GGML lays them out. Plain floats are blocks of one. Quantised blocks run along the innermost dimension, so a row is
// always whole blocks.
//
// All functions are pure. dequantise() is the reference that packed weights and kernels are tested against, not a fast
// path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::weights {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

inline constexpr int kWeightFormats = 11;

struct FormatInfo {
  const char* name;  // as GGML spells it, for example "Q4_K"
  int block_elements;
  int block_bytes;
};

const FormatInfo& format_info(WeightFormat format);
bool is_quantised(WeightFormat format);

// Widens whole blocks to fp32, with the bits of GGML's dequantize_row, also when denormals are flushed.
// out.size() must be a multiple of block_elements, and `blocks` exactly the blocks of that many elements.
void dequantise(WeightFormat format, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace quire::weights
