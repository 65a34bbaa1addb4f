// Rows of one layer in the cache, addressed in manager blocks: row r of block b lies at
//   base + b * block_stride + r * row_stride.
// For layers whose kernels are plain code and want no tiles: latent rows, pooled keys, rings; a recurrent state is the
// only row of its block. A view does not own the memory. Sequences of a step follow each other without gaps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"

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

// Shares the rows of a step out to the workers: each calls make() once and the result with (sequence, row of it).
template <class Make>
void split_rows(std::span<const AttentionSequence> sequences, ThreadPool& pool, Make make) {
  if (sequences.empty()) return;
  const int first = sequences.front().first_row;
  const int count = sequences.back().first_row + sequences.back().num_rows - first;
  pool.split(count, [&](int begin, int end) {
    auto work = make();
    for (int r = first + begin; r < first + end; r++) {
      const auto next = std::ranges::upper_bound(sequences, r, {}, &AttentionSequence::first_row);
      const AttentionSequence& sequence = *(next - 1);
      work(sequence, r - sequence.first_row);
    }
  });
}

}  // namespace quire::kernels
