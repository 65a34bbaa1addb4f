// A RoundedSource is another source with some of its float tensors rounded into blocks: online quantisation. (Matrices
// that are quantised in their files are a QuantisedCheckpoint's.)
//
// Such a tensor keeps its name and shape; its rows are quantised when they are asked for, from the other source's,
// which it owns. All other tensors are passed on as they are.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/tensor_source.h"

namespace quire::weights {

class RoundedSource final : public TensorSource {
 public:
  using Formats = std::map<std::string, WeightFormat, std::less<>>;

  // `formats` names tensors of `from` that hold floats in rows of whole blocks of 32 (can_quantise), and what each
  // becomes: kQ8_0 or kQ4_0.
  RoundedSource(std::unique_ptr<TensorSource> from, const Formats& formats);
  ~RoundedSource() override;

  const Tensor* find(std::string_view name) const override;
  std::span<const Tensor> tensors() const override { return tensors_; }
  Result<const Tensor*> require(std::string_view name) const override;

 private:
  class Rows;

  std::unique_ptr<TensorSource> from_;
  std::vector<std::unique_ptr<Rows>> rows_;
  std::vector<Tensor> tensors_;
  std::map<std::string_view, const Tensor*> quantised_;
};

// Whether a RoundedSource can take the tensor: floats in rows of whole blocks.
bool can_quantise(const Tensor& tensor);

}  // namespace quire::weights
