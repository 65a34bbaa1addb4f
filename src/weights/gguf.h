// A GgufFile is a model in one GGUF file, or in split files: typed metadata and tensors.
//
// Versions 2 and 3, little-endian. open() checks everything before it returns: counts, lengths, types, alignment,
// shapes, names (UTF-8, unique), and that tensors lie inside the file and do not overlap. Nothing is allocated on a
// header's word. Immutable once open; strings and tensors are views of the mapping and end with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/tensor_source.h"

namespace quire::weights {

class GgufFile final : public TensorSource {
 public:
  // Of a split model ("name-00001-of-00003.gguf"), any part opens the whole; metadata is that of the first.
  static Result<std::unique_ptr<GgufFile>> open(const std::filesystem::path& path);
  ~GgufFile() override;

  const Tensor* find(std::string_view name) const override;
  std::span<const Tensor> tensors() const override;
  Result<const Tensor*> require(std::string_view name) const override;

  // Metadata by key. A missing key is kNotFound, a value of another type or out of range is kCorruptFile; both name the
  // key.
  bool has(std::string_view key) const;
  Result<std::string_view> string(std::string_view key) const;
  Result<int64_t> integer(std::string_view key) const;  // any integer type
  Result<double> number(std::string_view key) const;    // any integer or float type
  Result<bool> boolean(std::string_view key) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<float>> floats(std::string_view key) const;      // an array of FLOAT32
  Result<std::vector<int64_t>> integers(std::string_view key) const;  // an array of any integer or boolean type
  // All keys, in the order of the file.
  std::vector<std::string_view> keys() const;

 private:
  struct Content;
  explicit GgufFile(std::unique_ptr<Content> content);

  std::unique_ptr<Content> content_;
};

}  // namespace quire::weights
