#include "weights/tensor_index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/utf8.h"

namespace quire::weights {

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t extent : shape)
    if (extent <= 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  return product;
}

std::string describe(const StoredTensor& tensor) {
  return fmt::format("[{}] {}", fmt::join(tensor.shape, ", "), tensor.format);
}

Result<void> TensorIndex::add(TensorEntry entry) {
  std::string name = entry.tensor.name;
  std::vector<Tensor>& list = entry.unreadable.empty() ? tensors_ : others_;
  const auto [place, added] = places_.try_emplace(std::move(name), Place{list.size(), std::move(entry.unreadable)});
  if (!added)
    return fail(ErrorKind::kCorruptFile, fmt::format("tensor {} occurs twice", in_quotes(place->first)), place->first);
  list.push_back(std::move(entry.tensor));
  return {};
}

std::optional<StoredTensor> TensorIndex::stored(std::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return std::nullopt;
  const Place& place = found->second;
  if (!place.unreadable.empty()) {
    const Tensor& tensor = others_[place.index];
    return StoredTensor{tensor.name, place.unreadable, tensor.shape, tensor.data};
  }
  const Tensor& tensor = tensors_[place.index];
  return StoredTensor{tensor.name, format_info(tensor.format).name, tensor.shape, tensor.data};
}

std::vector<std::string_view> TensorIndex::names() const {
  std::vector<std::string_view> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

const Tensor* TensorIndex::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() || !place->second.unreadable.empty() ? nullptr : &tensors_[place->second.index];
}

Result<const Tensor*> TensorIndex::require(std::string_view name) const {
  const auto place = places_.find(name);
  if (place == places_.end())
    return fail(ErrorKind::kCorruptFile, fmt::format("tensor {} is missing", in_quotes(name)), std::string(name));
  if (!place->second.unreadable.empty())
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("tensor {} has the format {}, which is not supported", in_quotes(name), place->second.unreadable),
        std::string(name));
  return &tensors_[place->second.index];
}

}  // namespace quire::weights
