// Numbers out of bytes that may lie anywhere, little-endian.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace quire::weights {

// Number `index` of a list of them; all of it must be inside.
template <class T>
T load(std::span<const std::byte> list, size_t index) {
  T value;
  std::memcpy(&value, list.data() + index * sizeof value, sizeof value);
  return value;
}

}  // namespace quire::weights
