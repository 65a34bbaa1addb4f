#include "weights/stacked_matrix.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/check.h"

namespace quire::weights {

StackedMatrix::StackedMatrix(const Tensor& stack, int64_t entry, bool transposed)
    : stack_(stack), tensor_{.name = stack.name, .format = stack.format, .shape = {}}, transposed_(transposed) {
  QUIRE_CHECK(!stack.shape.empty() && !(transposed && is_quantised(stack.format)));
  int64_t rows = stack.shape.size() == 1 ? 1 : stack.shape[stack.shape.size() - 2], cols = stack.shape.back();
  first_row_ = entry * rows;
  QUIRE_CHECK(entry >= 0 && first_row_ < stack.row_count());
  if (transposed) std::swap(rows, cols);
  tensor_.shape = {rows, cols};
  if (!transposed && stack.made == nullptr)
    tensor_.data = stack.data.subspan(static_cast<size_t>(first_row_) * stack.row_bytes(), tensor_.bytes());
  else
    tensor_.made = this;
}

void StackedMatrix::make_row(int64_t n, std::span<std::byte> blocks) const {
  if (!transposed_) {
    const auto row = stack_.row(first_row_ + n, blocks);
    if (row.data() != blocks.data()) std::memcpy(blocks.data(), row.data(), row.size());
    return;
  }
  const auto size = static_cast<size_t>(format_info(tensor_.format).block_bytes);
  std::vector<std::byte> scratch(stack_.made == nullptr ? 0 : stack_.row_bytes());
  for (int64_t k = 0; k < tensor_.shape.back(); ++k) {
    const auto row = stack_.row(first_row_ + k, scratch);
    std::memcpy(blocks.data() + static_cast<size_t>(k) * size, row.data() + static_cast<size_t>(n) * size, size);
  }
}

void StackedMatrix::add_to_digest(Sha256& hash) const {
  const std::string part = fmt::format("rows from {} on{} of ", first_row_, transposed_ ? ", transposed," : "");
  hash.update(std::as_bytes(std::span(part)));
  weights::add_to_digest(stack_, hash);
}

}  // namespace quire::weights
