// A TensorSource lists the tensors of one checkpoint.
//
// Every tensor that a source hands out has been checked: its shape is positive, its elements fit int64_t, its rows are
// whole blocks, and `data` is exactly as long as shape and format say and lies inside the mapped file, unless the rows
// are made. The source owns the mapping and what makes rows: views end with it. Reading is safe from any thread.
#pragma once

#include <span>
#include <string_view>

#include "quire/error.h"
#include "weights/tensor.h"

namespace quire::weights {

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The tensor of that name, or null if there is none, or none of a supported format.
  virtual const Tensor* find(std::string_view name) const = 0;
  // All tensors of supported formats, in the order of the file.
  virtual std::span<const Tensor> tensors() const = 0;
  // The tensor of that name. kCorruptFile if it is missing, kUnsupported if it has a format that is not read; both name
  // the tensor.
  virtual Result<const Tensor*> require(std::string_view name) const = 0;
};

}  // namespace quire::weights
