// A TensorIndex holds the tensors that a reader found, by name and in file order. Names are unique.
//
// Tensors of a format that is not read are held by name alone, so that asking for one can say why it is not there.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/tensor_source.h"

namespace quire::weights {

// What a reader says of one tensor. With `unreadable` set (the name of a format), only tensor.name and shape count.
struct TensorEntry {
  Tensor tensor;
  std::string unreadable = {};
};

// The product of the extents, or nothing if one is not positive or the product does not fit.
std::optional<int64_t> element_count(std::span<const int64_t> shape);

class TensorIndex {
 public:
  // kCorruptFile, naming the tensor, if the name is taken.
  Result<void> add(TensorEntry entry);

  const Tensor* find(std::string_view name) const;
  std::span<const Tensor> tensors() const { return tensors_; }
  // Whether there is a tensor of that name, of any format.
  bool knows(std::string_view name) const { return places_.contains(name); }
  Result<const Tensor*> require(std::string_view name) const;

 private:
  struct Place {
    size_t index;            // into tensors_, unless
    std::string unreadable;  // not empty
  };
  std::vector<Tensor> tensors_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace quire::weights
