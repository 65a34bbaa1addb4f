#include "weights/tensor_index.h"

#include <fmt/format.h>

#include <utility>

#include "base/utf8.h"

namespace quire::weights {

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t extent : shape)
    if (extent <= 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  return product;
}

Result<void> TensorIndex::add(TensorEntry entry) {
  std::string name = entry.tensor.name;
  const auto [place, added] = places_.try_emplace(std::move(name), Place{tensors_.size(), std::move(entry.unreadable)});
  if (!added)
    return fail(ErrorKind::kCorruptFile, fmt::format("tensor {} occurs twice", in_quotes(place->first)), place->first);
  if (place->second.unreadable.empty()) tensors_.push_back(std::move(entry.tensor));
  return {};
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
