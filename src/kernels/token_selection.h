// For each row of a step the positions of the keys that it reads, where it does not read all of them. Attention makes a
// row that reads none NaN.
//
// Memory is reserved once; a step takes none. Different rows may be added to from different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "quire/error.h"

namespace quire::kernels {

class TokenSelection {
 public:
  // Room for `rows` rows of up to `most` positions each. Memory that is never used costs nothing. kExhausted.
  static Result<TokenSelection> make(int rows, int most, Allocator& allocator);

  // The first `rows` rows, which must have room, become empty.
  void reset(int rows);

  // Adds the next position, greater than those before, of a row that has room.
  void add(int row, int32_t position) {
    const auto r = static_cast<size_t>(row);
    positions_[r * most_ + counts_[r]++] = position;
  }

  std::span<const int32_t> row(int row) const {
    const auto r = static_cast<size_t>(row);
    return {positions_ + r * most_, counts_[r]};
  }

 private:
  Buffer memory_;  // positions, then counts
  size_t rows_ = 0;
  size_t most_ = 0;
  int32_t* positions_ = nullptr;  // [rows][most]
  uint32_t* counts_ = nullptr;    // [rows]
};

}  // namespace quire::kernels
