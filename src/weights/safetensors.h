// SafetensorsFiles are the weights of a Hugging Face folder: model.safetensors, or the shards that
// model.safetensors.index.json lists.
//
// BF16, F16 and F32 tensors can be read as they are; stored() also shows the others, as parts of matrices
// (quantised_checkpoint.h). open() checks everything before it returns:
// header size, strict JSON, shapes, and that the tensors of a file tile its data exactly. Shards must lie in the folder
// itself. Immutable once open; tensors are views of the mapping and end with it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/tensor_index.h"
#include "weights/tensor_source.h"

namespace quire::weights {

class SafetensorsFiles final : public TensorSource {
 public:
  static Result<std::unique_ptr<SafetensorsFiles>> open(const std::filesystem::path& folder);
  ~SafetensorsFiles() override;

  const Tensor* find(std::string_view name) const override;
  std::span<const Tensor> tensors() const override;
  Result<const Tensor*> require(std::string_view name) const override;

  // A tensor of any dtype, its data as long as dtype and shape say; nothing if there is none of that name.
  std::optional<StoredTensor> stored(std::string_view name) const;
  // The names of all tensors of any dtype, in ascending order.
  std::vector<std::string_view> names() const;

 private:
  struct Content;
  explicit SafetensorsFiles(std::unique_ptr<Content> content);

  std::unique_ptr<Content> content_;
};

}  // namespace quire::weights
