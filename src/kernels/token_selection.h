// For each row of a step the positions of the keys that it reads, where it does not read all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire::kernels {

class TokenSelection {
 public:
  // Room for `rows` rows of up to `most` positions; rows are empty.
  void reset(int rows, int most) {
    most_ = static_cast<size_t>(most);
    counts_.assign(static_cast<size_t>(rows), 0);
    positions_.resize(static_cast<size_t>(rows) * most_);
  }

  // Adds the next position, greater than those before, of a row that has room. Rows are independent of each other.
  void add(int row, int32_t position) {
    const auto r = static_cast<size_t>(row);
    positions_[r * most_ + counts_[r]++] = position;
  }

  std::span<const int32_t> row(int row) const {
    const auto r = static_cast<size_t>(row);
    return {positions_.data() + r * most_, counts_[r]};
  }

 private:
  size_t most_ = 0;
  std::vector<size_t> counts_;
  std::vector<int32_t> positions_;  // [rows][most]
};

}  // namespace quire::kernels
