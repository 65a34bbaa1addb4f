#include "kernels/token_selection.h"

#include <algorithm>

#include "base/check.h"

namespace quire::kernels {

Result<TokenSelection> TokenSelection::make(int rows, int most, Allocator& allocator) {
  QUIRE_CHECK(rows >= 0 && most >= 0);
  TokenSelection selection;
  selection.rows_ = static_cast<size_t>(rows);
  selection.most_ = static_cast<size_t>(most);
  const size_t positions = selection.rows_ * selection.most_;
  auto memory = allocator.allocate((positions + selection.rows_) * sizeof(int32_t));
  if (!memory) return std::unexpected(memory.error());
  selection.memory_ = std::move(*memory);
  selection.positions_ = reinterpret_cast<int32_t*>(selection.memory_.data());
  selection.counts_ = reinterpret_cast<uint32_t*>(selection.positions_ + positions);
  return selection;
}

void TokenSelection::reset(int rows) {
  QUIRE_CHECK(rows >= 0 && static_cast<size_t>(rows) <= rows_);
  std::fill_n(counts_, rows, 0U);
}

}  // namespace quire::kernels
