// A TensorIndex holds the tensors that a reader found, by name and in file order. Names are unique.
//
// Tensors of a format that is not read are held apart: asking for one says why it is not there, and stored() hands out
// what the file says of any tensor, for readers that make matrices out of several.
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

// What a reader says of one tensor. With `unreadable` set (the name of a format), tensor.format does not count.
struct TensorEntry {
  Tensor tensor;
  std::string unreadable = {};
};

// A tensor of any format as it lies in the file.
struct StoredTensor {
  std::string_view name;
  std::string_view format;  // as the file spells it: "I32"
  std::span<const int64_t> shape;
  std::span<const std::byte> data;
};

// "[64, 8] I32", for messages.
std::string describe(const StoredTensor& tensor);

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

  // Nothing if there is no tensor of that name. The view ends with the next add().
  std::optional<StoredTensor> stored(std::string_view name) const;
  // Of all tensors, in ascending order.
  std::vector<std::string_view> names() const;

 private:
  struct Place {
    size_t index;            // into tensors_, or into others_ if
    std::string unreadable;  // is not empty
  };
  std::vector<Tensor> tensors_, others_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace quire::weights
