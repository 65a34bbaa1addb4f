// One matrix of a stack of them, such as an expert's, as a Tensor of its own; or one that its file keeps transposed.
//
// Borrows the stack's tensor, and must outlive what is made of its own. Reading is safe from any thread.
#pragma once

#include "weights/tensor.h"

namespace quire::weights {

class StackedMatrix final : public RowSource {
 public:
  // Number `entry` of [stack, rows, cols], or of [stack, cols, rows] if transposed, which floats alone can be. A matrix
  // is a stack of one, a vector a matrix of one row.
  StackedMatrix(const Tensor& stack, int64_t entry, bool transposed);
  StackedMatrix(const StackedMatrix&) = delete;
  StackedMatrix& operator=(const StackedMatrix&) = delete;

  // [rows, cols]
  const Tensor& tensor() const { return tensor_; }

  void make_row(int64_t n, std::span<std::byte> blocks) const override;
  void add_to_digest(Sha256& hash) const override;

 private:
  const Tensor& stack_;
  Tensor tensor_;
  int64_t first_row_;  // of the stack
  bool transposed_;
};

}  // namespace quire::weights
