#include "exec/forward.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/row_ops.h"

namespace quire::exec {
namespace {

// Rows of an MLP that run through it together: gate and up stay in the second-level cache.
constexpr int kMlpRows = 256;
constexpr size_t kLogitsBytes = size_t{16} << 20;

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

size_t bytes_of(int rows, int width) { return static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float); }

struct Widths {
  int wide = 0;      // q, k, v rows, or gate and up
  int attended = 0;  // heads of q, or the hidden size
  int input = 0;     // the widest input of a matrix
};

Widths widths_of(const model::ModelSpec& spec) {
  Widths w{0, spec.hidden_size, spec.hidden_size};
  for (const auto& layer : spec.layers) {
    const int q = layer.attention.q_heads * layer.attention.head_dim;
    w.wide = std::max({w.wide, layer.attention.qkv.rows()});
    w.attended = std::max(w.attended, q);
    w.input = std::max({w.input, q, layer.mlp.size});
  }
  return w;
}

int widest_mlp(const model::ModelSpec& spec) {
  int widest = 0;
  for (const auto& layer : spec.layers) widest = std::max(widest, layer.mlp.gate_up.rows());
  return widest;
}

}  // namespace

Result<Forward> Forward::make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                              Allocator& allocator, int max_rows, int max_positions) {
  const model::ModelSpec& spec = model.spec;
  Forward f(model, kernels, pool);
  for (const auto& rope : spec.ropes) {
    auto table = kernels::RopeTable::make(rope, max_positions, allocator);
    if (!table) return std::unexpected(table.error());
    f.ropes_.push_back(std::move(*table));
  }
  if (spec.scale_embeddings) {
    f.embedding_scale_ = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
    if (model.profile == Profile::kBF16) f.embedding_scale_ = bf16_to_float(float_to_bf16(f.embedding_scale_));
  }
  const size_t row = static_cast<size_t>(spec.vocab_size) * sizeof(float);
  f.logits_rows_ = static_cast<int>(std::clamp<size_t>(kLogitsBytes / row, 16, 64));

  const Widths widths = widths_of(spec);
  const size_t wide =
      std::max(bytes_of(max_rows, widths.wide), bytes_of(std::min(max_rows, kMlpRows), widest_mlp(spec)));
  const std::pair<Buffer*, size_t> buffers[] = {{&f.hidden_, bytes_of(max_rows, spec.hidden_size)},
                                                {&f.wide_, wide},
                                                {&f.attended_, bytes_of(max_rows, widths.attended)},
                                                {&f.normed_, bytes_of(max_rows, spec.hidden_size)},
                                                {&f.logits_, static_cast<size_t>(f.logits_rows_) * row}};
  for (const auto& [buffer, size] : buffers) {
    auto memory = allocator.allocate(size);
    if (!memory) return std::unexpected(memory.error());
    *buffer = std::move(*memory);
  }
  if (auto reserved = f.activations_.reserve(max_rows, widths.input, allocator); !reserved)
    return std::unexpected(reserved.error());
  return f;
}

void Forward::run(const StepBatch& batch, const AttentionGroups& caches, const LogitsSink& sink) {
  if (batch.rows() == 0) return;
  const int end = 1 + *std::max_element(batch.positions.begin(), batch.positions.end());
  for (auto& rope : ropes_) rope.prepare(end, *pool_);
  embed(batch);
  for (size_t layer = 0; layer < model_->layers.size(); ++layer) {
    attention(batch, caches, layer);
    mlp(batch.rows(), layer);
  }
  head(batch, sink);
}

void Forward::embed(const StepBatch& batch) {
  const auto width = static_cast<size_t>(model_->spec.hidden_size);
  const kernels::PackedMatrix& embedding = model_->embedding_matrix();
  pool_->split(batch.rows(), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* row = floats(hidden_) + static_cast<size_t>(r) * width;
      kernels::gather_row(embedding, batch.tokens[static_cast<size_t>(r)], row);
      if (embedding_scale_ != 1) kernels_->rows->scale(row, embedding_scale_, static_cast<int>(width), row);
    }
  });
}

kernels::ActivationKind Forward::kind_of(const model::Linear& linear) const {
  return kernels::activation_kind(linear.parts.front().matrix.layout());
}

// Rows [first_row, first_row + rows) of the residual stream, normed, become the activations of `next`.
void Forward::normed_activations(std::span<const float> norm, const model::Linear& next, int first_row, int rows) {
  const int width = model_->spec.hidden_size;
  activations_.reshape(kind_of(next), rows, width);
  pool_->split(rows, [&](int begin, int end) {
    const auto n = static_cast<size_t>(width);
    const float* x = floats(hidden_) + static_cast<size_t>(first_row + begin) * n;
    float* y = floats(normed_) + static_cast<size_t>(begin) * n;
    kernels_->rows->rms_norm({x, n, norm.data(), model_->spec.norm_epsilon, end - begin, width, y, n});
    activations_.set_rows(*kernels_, floats(normed_), n, begin, end);
  });
}

// Multiplies the activations with every matrix of `linear`. A part that wants another kind of activation than the first
// (a file may mix integers and floats) has them made ready again from normed_.
void Forward::apply(const model::Linear& linear, float* out, size_t stride, const float* residual) {
  for (const auto& part : linear.parts) {
    kernels::GemmOutput output{.out = out + part.first_row, .stride = stride};
    if (residual != nullptr) {
      output.residual = residual + part.first_row;
      output.residual_stride = stride;
    }
    const kernels::ActivationKind kind = kernels::activation_kind(part.matrix.layout());
    if (kind != activations_.kind()) {
      const int rows = activations_.rows();
      activations_.reshape(kind, rows, linear.cols);
      pool_->split(rows, [&](int begin, int end) {
        activations_.set_rows(*kernels_, floats(normed_), static_cast<size_t>(linear.cols), begin, end);
      });
    }
    kernels::gemm(*kernels_, part.matrix, activations_, output, *pool_);
  }
}

// hidden += post_norm(linear(activations)), or without the norm if there is none.
void Forward::add_residual(const model::Linear& linear, std::span<const float> post_norm, int first_row, int rows) {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  float* hidden = floats(hidden_) + static_cast<size_t>(first_row) * n;
  if (post_norm.empty()) return apply(linear, hidden, n, hidden);
  float* result = floats(normed_);
  apply(linear, result, n, nullptr);
  pool_->split(rows, [&](int begin, int end) {
    float* y = result + static_cast<size_t>(begin) * n;
    const int width = static_cast<int>(n);
    kernels_->rows->rms_norm({y, n, post_norm.data(), model_->spec.norm_epsilon, end - begin, width, y, n});
    for (int r = begin; r < end; ++r) {
      float* row = hidden + static_cast<size_t>(r) * n;
      kernels_->rows->add(row, result + static_cast<size_t>(r) * n, width, row);
    }
  });
}

// In place, on the rows of q, and of k where the layer makes them.
void Forward::rope_and_norm(const StepBatch& batch, const model::AttentionSpec& spec,
                            const model::LayerWeights& weights) {
  const auto stride = static_cast<size_t>(spec.qkv.rows());
  const auto d = static_cast<size_t>(spec.head_dim);
  const float epsilon = model_->spec.norm_epsilon;
  const int heads = spec.q_heads + (spec.keeps_own() ? spec.kv_heads : 0);
  pool_->split(batch.rows(), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* q = floats(wide_) + static_cast<size_t>(r) * stride;
      float* k = q + static_cast<size_t>(spec.q_heads) * d;
      if (spec.q_norm.present())
        kernels_->rows->rms_norm({q, d, weights.q_norm.data(), epsilon, spec.q_heads, spec.head_dim, q, d});
      if (spec.k_norm.present())
        kernels_->rows->rms_norm({k, d, weights.k_norm.data(), epsilon, spec.kv_heads, spec.head_dim, k, d});
      if (spec.rope < 0) continue;
      const kernels::RopeTable& rope = ropes_[static_cast<size_t>(spec.rope)];
      kernels::apply_rope(*kernels_, rope, batch.positions[static_cast<size_t>(r)], q, heads, d);
    }
  });
}

void Forward::attention(const StepBatch& batch, const AttentionGroups& caches, size_t layer) {
  const model::LayerSpec& spec = model_->spec.layers[layer];
  const model::LayerWeights& weights = model_->layers[layer];
  const model::AttentionSpec& a = spec.attention;
  const auto stride = static_cast<size_t>(a.qkv.rows());
  const size_t q_width = static_cast<size_t>(a.q_heads) * static_cast<size_t>(a.head_dim);
  const size_t kv_width = static_cast<size_t>(a.kv_heads) * static_cast<size_t>(a.head_dim);

  normed_activations(weights.attention_norm, weights.qkv, 0, batch.rows());
  apply(weights.qkv, floats(wide_), stride, nullptr);
  rope_and_norm(batch, a, weights);

  const LayerCache& cache = caches.layer(a.name);
  const AttentionGroup& group = caches.group(cache);
  if (a.keeps_own()) {
    const float* k = floats(wide_) + q_width;
    const auto& slots = batch.groups[static_cast<size_t>(group.cache_group.value)].slots;
    kernels::write_kv(*kernels_, group.shape, cache.view, {slots, k, k + kv_width, stride, stride}, *pool_);
  }
  const kernels::AttentionRows rows{
      .q = floats(wide_), .out = floats(attended_), .q_stride = stride, .out_stride = q_width, .scale = a.scale};
  kernels::attend(*kernels_, group.plan, cache.view, rows, workspace_, *pool_);

  activations_.reshape(kind_of(weights.output), batch.rows(), static_cast<int>(q_width));
  pool_->split(batch.rows(),
               [&](int begin, int end) { activations_.set_rows(*kernels_, floats(attended_), q_width, begin, end); });
  add_residual(weights.output, weights.attention_post_norm, 0, batch.rows());
}

void Forward::mlp(int rows, size_t layer) {
  const model::MlpSpec& spec = model_->spec.layers[layer].mlp;
  const model::LayerWeights& weights = model_->layers[layer];
  const auto stride = static_cast<size_t>(spec.gate_up.rows());
  const auto activate =
      spec.activation == model::Activation::kSilu ? kernels_->rows->silu_mul : kernels_->rows->gelu_tanh_mul;
  for (int first = 0; first < rows; first += kMlpRows) {
    const int count = std::min(kMlpRows, rows - first);
    normed_activations(weights.mlp_norm, weights.gate_up, first, count);
    apply(weights.gate_up, floats(wide_), stride, nullptr);
    activations_.reshape(kind_of(weights.down), count, spec.size);
    pool_->split(count, [&](int begin, int end) {
      for (int r = begin; r < end; ++r) {
        float* gate = floats(wide_) + static_cast<size_t>(r) * stride;
        activate(gate, gate + spec.size, spec.size, gate);
        activations_.set_row(*kernels_, gate, r);
      }
    });
    add_residual(weights.down, weights.mlp_post_norm, first, count);
  }
}

void Forward::head(const StepBatch& batch, const LogitsSink& sink) {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  const int wanted = static_cast<int>(batch.logits_rows.size());
  for (int first = 0; first < wanted; first += logits_rows_) {
    const int count = std::min(logits_rows_, wanted - first);
    activations_.reshape(kind_of(model_->head), count, static_cast<int>(n));
    pool_->split(count, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        const auto row = static_cast<size_t>(batch.logits_rows[static_cast<size_t>(first + i)]);
        float* y = floats(normed_) + static_cast<size_t>(i) * n;
        kernels_->rows->rms_norm({floats(hidden_) + row * n, n, model_->final_norm.data(), model_->spec.norm_epsilon, 1,
                                  static_cast<int>(n), y, n});
        activations_.set_row(*kernels_, y, i);
      }
    });
    apply(model_->head, floats(logits_), static_cast<size_t>(model_->spec.vocab_size), nullptr);
    sink({first, count, floats(logits_)});
  }
}

}  // namespace quire::exec
