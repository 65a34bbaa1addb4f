// A Tensor is a named view of weights as they lie in a file; a TensorSource lists those of one checkpoint.
//
// Every tensor that a source hands out has been checked: its shape is positive, its elements fit int64_t, and `data` is
// exactly as long as shape and format say and lies inside the mapped file. The source owns the mapping: views end with
// it. Reading is safe from any thread. `data` may be unaligned for its element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/format.h"

namespace quire::weights {

struct Tensor {
  std::string name;
  WeightFormat format = WeightFormat::kF32;
  std::vector<int64_t> shape;  // outermost first: a matrix is [N out, K in]; empty for a scalar
  std::span<const std::byte> data;

  int64_t elements() const;
};

// "[49152, 576] Q4_1", for messages.
std::string describe(const Tensor& tensor);

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
