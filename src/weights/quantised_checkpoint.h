// A QuantisedCheckpoint is the source of a safetensors checkpoint with quantised matrices: each is handed out as
// X.weight (of MXFP4: X), whose rows are made from its parts (quantised_parts.h); the parts themselves are not.
//
// Scales of activations and of the KV cache are left out too: what they quantise, Quire keeps in numbers of its own.
// Everything is checked before open() returns. Immutable then.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "weights/quantised_matrix.h"
#include "weights/quantised_parts.h"
#include "weights/safetensors.h"
#include "weights/tensor_index.h"
#include "weights/tensor_source.h"

namespace quire::weights {

class QuantisedCheckpoint final : public TensorSource {
 public:
  // Of several schemes each matrix takes the first that its parts fit. kCorruptFile or kUnsupported, naming the tensor,
  // also if there is a scheme but no matrix of any.
  // `files` is what `owner` is.
  static Result<std::unique_ptr<QuantisedCheckpoint>> open(std::unique_ptr<TensorSource> owner,
                                                           const SafetensorsFiles& files,
                                                           std::span<const QuantisationScheme> schemes);

  const Tensor* find(std::string_view name) const override { return index_.find(name); }
  std::span<const Tensor> tensors() const override { return index_.tensors(); }
  Result<const Tensor*> require(std::string_view name) const override { return index_.require(name); }

 private:
  explicit QuantisedCheckpoint(std::unique_ptr<TensorSource> owner) : owner_(std::move(owner)) {}
  Result<void> make_matrices(const SafetensorsFiles& files, std::span<const QuantisationScheme> schemes);

  std::unique_ptr<TensorSource> owner_;                     // of the files
  std::vector<std::unique_ptr<QuantisedMatrix>> matrices_;  // the tensors' rows
  TensorIndex index_;
};

// kCorruptFile, naming the tensor and quantization_config, if there is a quantised matrix among them.
Result<void> check_unquantised(const SafetensorsFiles& files);

}  // namespace quire::weights
