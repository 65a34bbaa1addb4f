// A ByteReader walks over bytes from outside, little-endian, and never past their end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace quire::weights {

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  // The next value, or nothing, without a move, if the bytes end before it does.
  template <class T>
  std::optional<T> read() {
    static_assert(std::endian::native == std::endian::little);
    const auto raw = take(sizeof(T));
    if (!raw) return std::nullopt;
    T value;
    std::memcpy(&value, raw->data(), sizeof value);
    return value;
  }

  std::optional<std::span<const std::byte>> take(uint64_t count) {
    if (count > remaining()) return std::nullopt;
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += taken.size();
    return taken;
  }

  // A 64-bit length and that many bytes.
  std::optional<std::string_view> read_string() {
    const size_t start = position_;
    const auto length = read<uint64_t>();
    const auto text = length ? take(*length) : std::nullopt;
    if (!text) {
      position_ = start;
      return std::nullopt;
    }
    return std::string_view(reinterpret_cast<const char*>(text->data()), text->size());
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace quire::weights
