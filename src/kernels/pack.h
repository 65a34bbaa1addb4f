// A PackedMatrix is a weight matrix W[N outputs, K inputs], rearranged once at load for the GEMM kernels.
//
// Its layout (gemm_layout.h) is the same for every instruction set. It owns its memory, is immutable once packed, and
// may be read from any thread. `slices` is the number of contiguous parts of K whose sums are added in the fixed tree
// of rule 11; it belongs to the numerics of the matrix, not to how it is run.
#pragma once

#include <functional>
#include <span>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/gemm_layout.h"
#include "quire/error.h"
#include "weights/tensor_source.h"

namespace quire::kernels {

// How weights are to be multiplied.
enum class WeightTarget {
  kF32,     // widened to fp32
  kBF16,    // rounded to bf16; f16 stays f16
  kNative,  // quantised formats in their own integers; floats as kBF16
};

class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(Layout layout, int outputs, int inputs, int slices, Buffer storage);

  Layout layout() const { return layout_; }
  int outputs() const { return outputs_; }  // N
  int inputs() const { return inputs_; }    // K
  int slices() const { return slices_; }
  int panels() const { return (outputs_ + panel_columns(layout_) - 1) / panel_columns(layout_); }
  size_t panel_stride() const { return stride_; }
  size_t bytes() const { return storage_.size(); }
  const std::byte* panel(int p) const { return storage_.data() + static_cast<size_t>(p) * stride_; }

 private:
  Layout layout_ = Layout::kF32;
  int outputs_ = 0;
  int inputs_ = 0;
  int slices_ = 1;
  size_t stride_ = 0;
  Buffer storage_;
};

// The layout that weights of this format get.
Layout layout_for(weights::WeightFormat format, WeightTarget target);

// Rule 11: the largest power of two, at most 8, whose slices of `inputs` are whole multiples of `unit` (for example
// a kv-head group's inputs; 1 if any will do) and whole blocks of the format, of 32 inputs at least.
int slice_count(weights::WeightFormat format, int inputs, int unit);

// What pack() makes of a matrix alone, in bytes.
size_t packed_bytes(const weights::Tensor& tensor, WeightTarget target);

struct PackSource {
  const weights::Tensor* tensor = nullptr;  // a matrix [rows, K]
  // Row n of the packed matrix (counted from this source's first) is this row of the tensor; empty: n itself.
  std::function<int(int)> source_row = {};
  int rows = 0;  // that it adds to the packed matrix; 0: as many as the tensor has
};

// Stacks the sources along N and packs them. All need the same K and the same layout under `target`.
// kUnsupported if they do not fit together, K is not whole blocks, or the slices are not; kExhausted without memory.
Result<PackedMatrix> pack(std::span<const PackSource> sources, WeightTarget target, int slices, Allocator& allocator,
                          ThreadPool& pool);

// Writes row `n` widened to fp32, inputs() values: the exact values that the file means (bf16-rounded where packed so).
void gather_row(const PackedMatrix& matrix, int n, float* out);

}  // namespace quire::kernels
