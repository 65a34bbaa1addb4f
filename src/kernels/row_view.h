// Rows of one layer in the cache, addressed in manager blocks: row r of block b lies at
//   base + b * block_stride + r * row_stride.
// For layers whose kernels want no tiles: latent rows, pooled keys, rings; a recurrent state is the only row of its
// block. A view does not own the memory. Sequences of a step follow each other without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace quire::kernels {

struct RowView {
  std::byte* base = nullptr;
  size_t block_stride = 0;  // bytes
  size_t row_stride = 0;
  int64_t rows_per_block = 1;

  std::byte* row(int64_t block, int64_t row) const {
    return base + static_cast<size_t>(block) * block_stride + static_cast<size_t>(row) * row_stride;
  }
  // Slots count rows: block * rows_per_block + row.
  std::byte* slot(int64_t slot) const { return row(slot / rows_per_block, slot % rows_per_block); }
};

// Row `index` of a sequence whose block table is `blocks`.
inline std::byte* sequence_row(const RowView& view, const int32_t* blocks, int64_t index) {
  return view.row(blocks[index / view.rows_per_block], index % view.rows_per_block);
}

// Numbers of a row, bf16 or f32, from and to fp32.
inline void read_numbers(const std::byte* from, int n, DType dtype, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int i = 0; i < n; i++) {
    uint16_t number;
    std::memcpy(&number, from + static_cast<size_t>(i) * sizeof number, sizeof number);
    out[i] = bf16_to_float(number);
  }
}

inline void write_numbers(const float* x, int n, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int i = 0; i < n; i++) {
    const uint16_t number = float_to_bf16(x[i]);
    std::memcpy(to + static_cast<size_t>(i) * sizeof number, &number, sizeof number);
  }
}

}  // namespace quire::kernels
