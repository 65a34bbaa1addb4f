#include "exec/moe.h"

#include <algorithm>

#include "kernels/math.h"
#include "kernels/row_ops.h"

namespace quire::exec {
namespace {

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

// Of the part's outputs; null: none.
const float* bias_of(const model::Linear& linear, const model::Linear::Part& part) {
  return linear.bias.empty() ? nullptr : linear.bias.data() + part.first_row;
}

// The most of what any expert layer needs.
struct Sizes {
  int scores = 0, chosen = 0, experts = 0, wide = 0, inner = 0, parts = 0, slices = 0;
  bool weighed = false;  // inputs
};

Sizes sizes_of(const model::Model& model) {
  Sizes s;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const auto* spec = std::get_if<model::MoeSpec>(&model.spec.layers[i].mlp);
    if (spec == nullptr) continue;
    const auto& weights = std::get<model::MoeWeights>(model.layers[i].mlp);
    s.scores = std::max(s.scores, spec->scores.rows());
    s.weighed |= spec->weighs_inputs;
    s.chosen = std::max(s.chosen, spec->router.chosen);
    s.experts = std::max(s.experts, spec->router.experts);
    s.wide = std::max(s.wide, spec->experts.front().gate_up.rows());
    s.inner = std::max(s.inner, spec->experts.front().size);
    s.slices = std::max(s.slices, weights.experts.front().down.parts.front().matrix.slices());
    for (const model::MlpWeights& expert : weights.experts)
      s.parts = std::max(s.parts, static_cast<int>(expert.gate_up.parts.size()));
  }
  return s;
}

}  // namespace

void activate(const kernels::KernelTable& kernels, const model::MlpSpec& spec, float* gate_up) {
  float* up = gate_up + spec.size;
  switch (spec.activation) {
    case model::Activation::kSilu:
      return kernels.rows->silu_mul(gate_up, up, spec.size, gate_up);
    case model::Activation::kGeluTanh:
      return kernels.rows->gelu_tanh_mul(gate_up, up, spec.size, gate_up);
    case model::Activation::kClampedSwiglu:
      return kernels.rows->clamped_swiglu({gate_up, up, spec.alpha, spec.limit, spec.up_offset, spec.size, gate_up});
  }
}

Result<MoeLayers> MoeLayers::make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                                  Allocator& allocator, int max_rows) {
  MoeLayers layers(kernels, pool, model.spec.hidden_size);
  if (auto reserved = layers.reserve(model, allocator, std::min(max_rows, kRows)); !reserved)
    return std::unexpected(reserved.error());
  return layers;
}

Result<void> MoeLayers::reserve(const model::Model& model, Allocator& allocator, int rows) {
  const Sizes s = sizes_of(model);
  if (s.experts == 0) return {};
  const int pairs = rows * s.chosen;
  const std::pair<Buffer*, int64_t> buffers[] = {{&scores_, int64_t{rows} * s.scores},
                                                 {&wide_, int64_t{pairs} * s.wide},
                                                 {&weighed_, s.weighed ? int64_t{pool_->size()} * hidden_ : 0}};
  if (s.weighed) ones_.assign(static_cast<size_t>(pairs), 1);
  for (const auto& [buffer, size] : buffers) {
    auto memory = allocator.allocate(static_cast<size_t>(size) * sizeof(float));
    if (!memory) return std::unexpected(memory.error());
    *buffer = std::move(*memory);
  }
  routes_.reserve(static_cast<size_t>(pairs));
  pairs_.reserve(pairs, s.experts);
  const auto most = static_cast<size_t>(std::min(pairs, s.experts));
  products_.reserve(most * static_cast<size_t>(s.parts));
  terms_.reserve(most);
  if (auto ok = score_inputs_.reserve(rows, hidden_, allocator); !ok) return ok;
  if (auto ok = inputs_.reserve(pairs, s.experts, hidden_, allocator); !ok) return ok;
  if (auto ok = inner_.reserve(pairs, s.experts, s.inner, allocator); !ok) return ok;
  return workspace_.reserve(rows, s.slices, pool_->size(), allocator);
}

void MoeLayers::route(const model::MoeSpec& spec, const model::MoeWeights& weights, const float* x, int rows) {
  const auto width = static_cast<size_t>(hidden_), scores = static_cast<size_t>(spec.scores.rows());
  score_inputs_.reshape(*kernels_, kernels::ActivationKind::kF32, rows, hidden_);
  pool_->split(rows, [&](int begin, int end) { score_inputs_.set_rows(*kernels_, x, width, begin, end); });
  for (const auto& part : weights.scores.parts) {
    const kernels::GemmOutput output{
        .out = floats(scores_) + part.first_row, .stride = scores, .bias = bias_of(weights.scores, part)};
    kernels::gemm(*kernels_, part.matrix, score_inputs_, output, *pool_);
  }
  const auto chosen = static_cast<size_t>(spec.router.chosen);
  routes_.resize(static_cast<size_t>(rows) * chosen);
  const float* correction = weights.correction.empty() ? nullptr : weights.correction.data();
  pool_->split(rows, [&](int begin, int end) {
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
      kernels::route(spec.router, floats(scores_) + r * scores, correction, routes_.data() + r * chosen);
  });
  pairs_.assign(routes_, spec.router.chosen, spec.router.experts);
}

// Calls f(worker, group, pair, row of the group) in parallel.
template <class F>
void MoeLayers::for_each_pair(F f) {
  const auto groups = pairs_.groups();
  pool_->split(pairs_.count(), [&](int worker, int begin, int end) {
    size_t g = 0;
    for (int p = begin; p < end; ++p) {
      while (p >= groups[g].first + groups[g].count) ++g;
      f(worker, g, p, p - groups[g].first);
    }
  });
}

void MoeLayers::gather(const model::MoeSpec& spec, const model::MoeWeights& weights, const float* x,
                       const kernels::Activations& activations) {
  const auto groups = pairs_.groups();
  const auto stride = static_cast<size_t>(spec.experts.front().gate_up.rows());
  inputs_.reshape(*kernels_, activations.kind(), groups, hidden_);
  products_.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    float* out = floats(wide_) + static_cast<size_t>(groups[g].first) * stride;
    const model::Linear& linear = weights.experts[static_cast<size_t>(groups[g].expert)].gate_up;
    for (const auto& part : linear.parts) {
      const kernels::GemmOutput output{.out = out + part.first_row, .stride = stride, .bias = bias_of(linear, part)};
      products_.push_back({&part.matrix, &inputs_.group(g), output});
    }
  }
  // Rounding to int8 takes longer than to copy what it gave; floats are rounded while they are copied.
  const auto width = static_cast<size_t>(hidden_);
  for_each_pair([&](int worker, size_t g, int pair, int row) {
    const int from = pairs_.rows()[pair];
    const float* input = x + static_cast<size_t>(from) * width;
    if (spec.weighs_inputs) {
      float* weighed = floats(weighed_) + static_cast<size_t>(worker) * width;
      kernels_->rows->scale(input, pairs_.weights()[pair], hidden_, weighed);
      inputs_.group(g).set_row(*kernels_, weighed, row);
    } else if (activations.kind() == kernels::ActivationKind::kInt8) {
      inputs_.group(g).copy_row(activations, from, row);
    } else {
      inputs_.group(g).set_row(*kernels_, input, row);
    }
  });
}

void MoeLayers::activate(const model::MoeSpec& spec, const model::MoeWeights& weights) {
  const model::MlpSpec& first = spec.experts.front();
  const auto stride = static_cast<size_t>(first.gate_up.rows());
  const kernels::Layout layout = weights.experts.front().down.parts.front().matrix.layout();
  inner_.reshape(*kernels_, kernels::activation_kind(layout), pairs_.groups(), first.size);
  for_each_pair([&](int, size_t g, int pair, int row) {
    float* gate = floats(wide_) + static_cast<size_t>(pair) * stride;
    exec::activate(*kernels_, first, gate);
    inner_.group(g).set_row(*kernels_, gate, row);
  });
}

void MoeLayers::gate_shared(const model::MoeSpec& spec, float* shared, int rows) {
  if (!spec.shared_is_gated) return;
  const auto width = static_cast<size_t>(hidden_), scores = static_cast<size_t>(spec.scores.rows());
  pool_->split(rows, [&](int begin, int end) {
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
      const float gate = kernels::sigmoid(floats(scores_)[r * scores + scores - 1]);
      kernels_->rows->scale(shared + r * width, gate, hidden_, shared + r * width);
    }
  });
}

void MoeLayers::mix(const model::MoeSpec& spec, const model::MoeWeights& weights, int rows,
                    const kernels::GemmOutput& output) {
  const auto groups = pairs_.groups();
  const float* factors = spec.weighs_inputs ? ones_.data() : pairs_.weights();
  terms_.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    const model::Linear& linear = weights.experts[static_cast<size_t>(groups[g].expert)].down;
    const auto& part = linear.parts.front();
    terms_.push_back({&part.matrix, &inner_.group(g), pairs_.rows() + groups[g].first, factors + groups[g].first,
                      bias_of(linear, part)});
  }
  kernels::mix_experts(*kernels_, terms_, rows, output, workspace_, *pool_);
}

}  // namespace quire::exec
