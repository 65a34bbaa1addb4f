// A QuantisedMatrix makes the rows of a matrix, or of a stack of them, whose integers, scales and zero points lie in
// tensors of their own.
//
// Its values are scale * (q - zero), or scale * x for an FP8 or E2M1 x. The format that the rows get keeps them
// exactly:
//
//   Q4_0, Q8_0          symmetric, every scale an fp16 number
//   Q5_0                4 bits with zero points, which five bits hold the difference to, and scales like that
//   AFFINE4, AFFINE8    other integers
//   MXFP4               E2M1 with powers of two
//   BF16                FP8, and inputs in groups that are no neighbours: each product is rounded to fp32, then to bf16
//
// Immutable; any thread may ask for rows. A view of the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/quantised_parts.h"
#include "weights/tensor.h"

namespace quire::weights {

class QuantisedMatrix final : public RowSource {
 public:
  // Reads all scales once: the format depends on them.
  explicit QuantisedMatrix(const MatrixParts& parts);

  WeightFormat format() const { return format_; }
  std::vector<int64_t> shape() const;  // [rows, cols], or [stack, rows, cols]

  void make_row(int64_t n, std::span<std::byte> blocks) const override;
  void add_to_digest(Sha256& hash) const override;

 private:
  void read_codes(int64_t n, int64_t first, std::span<uint8_t> out) const;
  int64_t group_of(int64_t k) const;
  size_t grid_index(int64_t n, int64_t group) const;
  float scale(int64_t n, int64_t group) const;
  uint8_t zero(int64_t n, int64_t group) const;
  void make_block(int64_t n, int64_t first, std::byte* block) const;
  void make_floats(int64_t n, int64_t first, std::span<std::byte> out) const;

  MatrixParts parts_;
  WeightFormat format_;
};

}  // namespace quire::weights
