#include "weights/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "base/check.h"

namespace quire::weights {
namespace {

int64_t row_elements(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.back(); }

}  // namespace

int64_t Tensor::elements() const {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

int64_t Tensor::row_count() const { return elements() / row_elements(*this); }

size_t Tensor::row_bytes() const {
  const FormatInfo& info = format_info(format);
  return static_cast<size_t>(row_elements(*this) / info.block_elements) * static_cast<size_t>(info.block_bytes);
}

size_t Tensor::bytes() const { return static_cast<size_t>(row_count()) * row_bytes(); }

std::span<const std::byte> Tensor::row(int64_t n, std::span<std::byte> scratch) const {
  const size_t size = row_bytes();
  if (made == nullptr) return data.subspan(static_cast<size_t>(n) * size, size);
  QUIRE_CHECK(scratch.size() >= size);
  made->make_row(n, scratch.first(size));
  return scratch.first(size);
}

std::string describe(const Tensor& tensor) {
  return fmt::format("[{}] {}", fmt::join(tensor.shape, ", "), format_info(tensor.format).name);
}

void widen(const Tensor& tensor, std::span<float> out) {
  QUIRE_CHECK(out.size() == static_cast<size_t>(tensor.elements()));
  const auto inputs = static_cast<size_t>(row_elements(tensor));
  std::vector<std::byte> scratch(tensor.made == nullptr ? 0 : tensor.row_bytes());
  for (int64_t n = 0; n < tensor.row_count(); ++n)
    dequantise(tensor.format, tensor.row(n, scratch), out.subspan(static_cast<size_t>(n) * inputs, inputs));
}

void add_to_digest(const Tensor& tensor, Sha256& hash) {
  const std::string text =
      fmt::format("{} {}{}\n", tensor.name, describe(tensor), tensor.made == nullptr ? "" : " made of");
  hash.update(std::as_bytes(std::span(text)));
  if (tensor.made == nullptr)
    hash.update(tensor.data);
  else
    tensor.made->add_to_digest(hash);
}

}  // namespace quire::weights
