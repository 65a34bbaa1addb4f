#include "model/quantise.h"

#include <fmt/format.h>

#include <set>
#include <string_view>
#include <utility>

#include "weights/quantise.h"

namespace quire::model {
namespace {

using weights::WeightFormat;

// Groups of 32 with one scale. A minimum beside it (Q4_1) halves no error for its half bit, and costs speed.
constexpr WeightFormat kInt8Format = WeightFormat::kQ8_0, kInt4Format = WeightFormat::kQ4_0;

class Planner {
 public:
  explicit Planner(const weights::TensorSource& tensors) : tensors_(tensors) {}

  void add(const MatrixSpec& matrix, WeightFormat format) {
    for (const MatrixPart& part : matrix.parts)
      if (!part.in_fp32) add(part.tensor, format, part.transposed);
  }

  // What is added first counts.
  void add(const std::string& name, WeightFormat format, bool transposed = false) {
    const weights::Tensor* tensor = tensors_.find(name);
    if (tensor == nullptr || !seen_.insert(name).second) return;
    if (!transposed && weights::can_quantise(*tensor)) {
      plan_.formats.emplace(name, format);
      return;
    }
    if (obstacle_ == nullptr) obstacle_ = tensor;
    if (!weights::is_quantised(tensor->format)) plan_.kept.push_back(name);
  }

  Result<QuantisationPlan> finish(std::string_view option) {
    if (!plan_.formats.empty() || obstacle_ == nullptr) return std::move(plan_);
    const std::string reason =
        weights::is_quantised(obstacle_->format)
            ? fmt::format("tensor {} is {} in the file", obstacle_->name, weights::describe(*obstacle_))
            : fmt::format("the rows of tensor {} {} are not whole groups of {} inputs", obstacle_->name,
                          weights::describe(*obstacle_), weights::kQuantisedBlock);
    return fail(ErrorKind::kUnsupported,
                fmt::format("{} finds nothing to quantise: {}; run this model without it", option, reason),
                std::string(option));
  }

 private:
  const weights::TensorSource& tensors_;
  QuantisationPlan plan_;
  std::set<std::string_view> seen_;
  const weights::Tensor* obstacle_ = nullptr;  // the first that cannot be quantised
};

// The tensor of a layer's values, or none: where q, k and v are parts of their own.
const std::string* values_of(const LayerSpec& layer) {
  const auto* attention = std::get_if<AttentionSpec>(&layer.mixer);
  return attention != nullptr && attention->qkv.parts.size() >= 3 ? &attention->qkv.parts[2].tensor : nullptr;
}

}  // namespace

Result<QuantisationPlan> plan_quantisation(const ModelSpec& spec, const weights::TensorSource& tensors,
                                           Quantization layers, LmHeadQuantization head) {
  const bool all = layers != Quantization::kNone;
  Planner planner(tensors);
  if (all) {
    const WeightFormat format = layers == Quantization::kInt8 ? kInt8Format : kInt4Format;
    for (const LayerSpec& layer : spec.layers) {
      if (const std::string* values = values_of(layer)) planner.add(*values, kInt8Format);
      for (const MatrixSpec* matrix : layer.matrices()) planner.add(*matrix, format);
    }
    if (!spec.tied_head()) planner.add(spec.embedding, kInt8Format);
  }
  if (head == LmHeadQuantization::kInt8 || (head == LmHeadQuantization::kAuto && all))
    planner.add(spec.head, kInt8Format);
  return planner.finish(all ? "quantization" : "lm_head_quantization");
}

}  // namespace quire::model
