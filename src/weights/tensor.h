// A Tensor is a named view of weights: rows of whole blocks of one number format.
//
// The rows lie in a file, or a RowSource makes each one when it is asked for: from integers and scales that a file
// keeps apart, or from floats. What reads weights goes through the functions here and need not know which.
//
// A row runs along the innermost dimension. Views do not own: files and RowSources belong to the TensorSource that
// hands the tensor out. Reading is safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "weights/format.h"

namespace quire::weights {

class RowSource {
 public:
  virtual ~RowSource() = default;

  // Writes the blocks of row n, `blocks` being exactly as long as they are. The same bytes every time, from any thread,
  // but for values multiplied out (FP8, say) that are denormal or whose scale is: zero where denormals are flushed.
  virtual void make_row(int64_t n, std::span<std::byte> blocks) const = 0;
  // Adds all that the rows follow from: the method by name, and the bytes that it reads.
  virtual void add_to_digest(Sha256& hash) const = 0;
};

struct Tensor {
  std::string name;
  WeightFormat format = WeightFormat::kF32;
  std::vector<int64_t> shape;            // outermost first: a matrix is [N out, K in]; empty for a scalar
  std::span<const std::byte> data = {};  // the rows one after the other, unless they are made; may be unaligned
  const RowSource* made = nullptr;       // makes the rows; null: they are `data`

  int64_t elements() const;
  int64_t row_count() const;  // a scalar is a row of one
  size_t row_bytes() const;
  size_t bytes() const;  // of all rows, which need not exist at once
  // The blocks of row n. `scratch` holds row_bytes() at least; the view may be of it.
  std::span<const std::byte> row(int64_t n, std::span<std::byte> scratch) const;
};

// "[49152, 576] Q4_1", for messages.
std::string describe(const Tensor& tensor);

// All elements in fp32. out.size() must be elements().
void widen(const Tensor& tensor, std::span<float> out);

// Adds name, format, shape and content.
void add_to_digest(const Tensor& tensor, Sha256& hash);

}  // namespace quire::weights
