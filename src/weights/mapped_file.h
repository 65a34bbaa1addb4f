// A MappedFile is the content of a file as read-only memory, for as long as it lives.
//
// The mapping is private and lazy: pages come from the file on first touch. The file must not be shortened meanwhile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "quire/error.h"

namespace quire::weights {

class MappedFile {
 public:
  // kNotFound if there is no such file; kUnsupported if it is not a regular file or cannot be read.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire::weights
