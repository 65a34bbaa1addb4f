#include "exec/forward.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/overloaded.h"
#include "kernels/row_ops.h"

namespace quire::exec {
namespace {

// Rows of an MLP that run through it together: gate and up stay in the second-level cache.
constexpr int kMlpRows = 256;
constexpr size_t kLogitsBytes = size_t{16} << 20;

size_t bytes_of(int rows, int width) { return static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float); }

struct Widths {
  int wide = 0;      // what a mixer's matrices make
  int attended = 0;  // what a mixer leaves, or the hidden size
  int normed = 0;    // the hidden size, or narrow queries or gates
  int input = 0;     // the widest input of a matrix
};

void widen(Widths& w, const model::AttentionSpec& a) {
  w.wide = std::max(w.wide, a.qkv.rows());
  w.attended = std::max(w.attended, a.q_heads * a.head_dim);
}

void widen(Widths& w, const model::GatedDeltaSpec& g) {
  w.wide = std::max(w.wide, g.input.rows() + g.z.rows() + g.a.rows());
  w.normed = std::max(w.normed, g.gate_rank);
  w.attended = std::max(w.attended, g.shape.value_rows());
}

void widen(Widths& w, const model::LatentSpec& l) {
  w.wide = std::max(w.wide, l.input.rows() + l.query.rows());
  w.normed = std::max(w.normed, l.query_rank);
  w.attended = std::max(w.attended, l.value_rows());
}

// The dense MLP of the layer, or the shared expert beside others; null: none.
const model::MlpSpec* dense_of(const model::LayerSpec& layer) {
  if (const auto* dense = std::get_if<model::MlpSpec>(&layer.mlp)) return dense;
  const auto& shared = std::get<model::MoeSpec>(layer.mlp).shared;
  return shared ? &*shared : nullptr;
}

Widths widths_of(const model::ModelSpec& spec) {
  Widths w{0, spec.hidden_size, spec.hidden_size, 0};
  for (const auto& layer : spec.layers) {
    std::visit([&](const auto& mixer) { widen(w, mixer); }, layer.mixer);
    const model::MlpSpec* dense = dense_of(layer);
    w.input = std::max({w.input, w.attended, w.normed, dense == nullptr ? 0 : dense->size});
  }
  return w;
}

// The most positions that a row of an indexed layer reads; 0 without such layers.
int most_selected(const model::ModelSpec& spec, int max_positions) {
  int most = 0;
  for (const auto& layer : spec.layers)
    if (const auto* latent = std::get_if<model::LatentSpec>(&layer.mixer); latent != nullptr && latent->indexer)
      most = std::max(most, latent->indexer->shape.most_selected());
  return std::min(most, max_positions);
}

int widest_mlp(const model::ModelSpec& spec) {
  int widest = 0;
  for (const auto& layer : spec.layers)
    if (const model::MlpSpec* dense = dense_of(layer)) widest = std::max(widest, dense->gate_up.rows());
  return widest;
}

}  // namespace

Result<Forward> Forward::make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                              Allocator& allocator, int max_rows, int max_positions) {
  const model::ModelSpec& spec = model.spec;
  auto moe = MoeLayers::make(model, kernels, pool, allocator, max_rows);
  if (!moe) return std::unexpected(moe.error());
  Forward f(model, kernels, pool, std::move(*moe));
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
      std::max(bytes_of(max_rows, widths.wide), bytes_of(std::min(max_rows, MoeLayers::kRows), widest_mlp(spec)));
  const std::pair<Buffer*, size_t> buffers[] = {{&f.hidden_, bytes_of(max_rows, spec.hidden_size)},
                                                {&f.wide_, wide},
                                                {&f.attended_, bytes_of(max_rows, widths.attended)},
                                                {&f.normed_, bytes_of(max_rows, widths.normed)},
                                                {&f.logits_, static_cast<size_t>(f.logits_rows_) * row}};
  for (const auto& [buffer, size] : buffers) {
    auto memory = allocator.allocate(size);
    if (!memory) return std::unexpected(memory.error());
    *buffer = std::move(*memory);
  }
  if (spec.streams) {
    auto streams = ResidualStreams::make(model, kernels, pool, allocator, max_rows);
    if (!streams) return std::unexpected(streams.error());
    f.streams_ = std::move(*streams);
  }
  if (auto reserved = f.activations_.reserve(max_rows, widths.input, allocator); !reserved)
    return std::unexpected(reserved.error());
  auto selection = kernels::TokenSelection::make(max_rows, most_selected(spec, max_positions), allocator);
  if (!selection) return std::unexpected(selection.error());
  f.selection_ = std::move(*selection);
  for (const auto& layer : spec.layers) {
    const auto* latent = std::get_if<model::LatentSpec>(&layer.mixer);
    if (latent == nullptr) continue;
    if (auto ok = f.latent_workspace_.reserve(latent->shape, max_rows, pool.size(), allocator); !ok)
      return std::unexpected(ok.error());
    if (!latent->indexer) continue;
    if (auto ok = f.index_workspace_.reserve(latent->indexer->shape, pool.size(), allocator); !ok)
      return std::unexpected(ok.error());
  }
  return f;
}

void Forward::run(const StepBatch& batch, const AttentionGroups& caches, const LogitsSink& sink, StepProfile* profile) {
  if (batch.rows() == 0) return;
  profile_ = profile;
  const int end = 1 + *std::max_element(batch.positions.begin(), batch.positions.end());
  for (auto& rope : ropes_) rope.prepare(end, *pool_);
  charge(Operator::kRope);
  embed(batch);
  charge(Operator::kEmbed);
  const int rows = batch.rows();
  if (streams_) streams_->begin(floats(hidden_), rows);
  for (size_t layer = 0; layer < model_->layers.size(); ++layer) {
    const model::LayerWeights& weights = model_->layers[layer];
    enter(weights.attention_streams, rows);
    mix(batch, caches, layer);
    leave(rows);
    enter(weights.mlp_streams, rows);
    feed_forward(rows, layer);
    leave(rows);
  }
  if (streams_) streams_->end(rows, floats(hidden_));
  head(batch, sink);
}

void Forward::enter(const std::optional<model::StreamsWeights>& weights, int rows) {
  if (!streams_) return;
  streams_->enter(*weights, rows, floats(hidden_));
  charge(Operator::kNorm);
}

void Forward::leave(int rows) {
  if (!streams_) return;
  streams_->leave(rows, floats(hidden_));
  charge(Operator::kNorm);
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
  activations_.reshape(*kernels_, kind_of(next), rows, width);
  pool_->split(rows, [&](int begin, int end) {
    const auto n = static_cast<size_t>(width);
    const float* x = floats(hidden_) + static_cast<size_t>(first_row + begin) * n;
    float* y = floats(normed_) + static_cast<size_t>(begin) * n;
    kernels_->rows->rms_norm({x, n, norm.data(), model_->spec.norm_epsilon, end - begin, width, y, n});
    activations_.set_rows(*kernels_, floats(normed_), n, begin, end);
  });
  charge(Operator::kNorm);
}

// Multiplies the activations with every matrix of `linear`. A part that wants another kind of activation than the first
// (a file may mix integers and floats) has them made ready again from normed_.
void Forward::apply(const model::Linear& linear, float* out, size_t stride, const float* residual) {
  for (const auto& part : linear.parts) {
    kernels::GemmOutput output{.out = out + part.first_row, .stride = stride};
    if (!linear.bias.empty()) output.bias = linear.bias.data() + part.first_row;
    if (residual != nullptr) {
      output.residual = residual + part.first_row;
      output.residual_stride = stride;
    }
    const kernels::ActivationKind kind = kernels::activation_kind(part.matrix.layout());
    if (kind != activations_.kind()) {
      const int rows = activations_.rows();
      activations_.reshape(*kernels_, kind, rows, linear.cols);
      pool_->split(rows, [&](int begin, int end) {
        activations_.set_rows(*kernels_, floats(normed_), static_cast<size_t>(linear.cols), begin, end);
      });
    }
    kernels::gemm(*kernels_, part.matrix, activations_, output, *pool_);
  }
}

// hidden += post_norm(linear(activations)), or without the norm if there is none. Several streams take it by
// themselves.
void Forward::add_residual(Operator op, const model::Linear& linear, std::span<const float> post_norm, int first_row,
                           int rows) {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  float* hidden = floats(hidden_) + static_cast<size_t>(first_row) * n;
  if (post_norm.empty()) {
    apply(linear, hidden, n, streams_ ? nullptr : hidden);
    return charge(op);
  }
  apply(linear, floats(normed_), n, nullptr);
  charge(op);
  add_normed(post_norm, first_row, rows);
}

// hidden += post_norm(normed_)
void Forward::add_normed(std::span<const float> post_norm, int first_row, int rows) {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  float* hidden = floats(hidden_) + static_cast<size_t>(first_row) * n;
  float* result = floats(normed_);
  pool_->split(rows, [&](int begin, int end) {
    float* y = result + static_cast<size_t>(begin) * n;
    const int width = static_cast<int>(n);
    kernels_->rows->rms_norm({y, n, post_norm.data(), model_->spec.norm_epsilon, end - begin, width, y, n});
    for (int r = begin; r < end; ++r) {
      float* row = hidden + static_cast<size_t>(r) * n;
      kernels_->rows->add(row, result + static_cast<size_t>(r) * n, width, row);
    }
  });
  charge(Operator::kNorm);
}

void Forward::feed_forward(int rows, size_t layer) {
  std::visit(Overloaded{[&](const model::MlpSpec& spec) {
                          dense(rows, layer, spec, std::get<model::MlpWeights>(model_->layers[layer].mlp));
                        },
                        [&](const model::MoeSpec& spec) {
                          experts(rows, layer, spec, std::get<model::MoeWeights>(model_->layers[layer].mlp));
                        }},
             model_->spec.layers[layer].mlp);
}

// Activations of gate and up become those of down.
void Forward::inner_activations(const model::MlpSpec& spec, const model::MlpWeights& weights, int rows) {
  const auto stride = static_cast<size_t>(spec.gate_up.rows());
  apply(weights.gate_up, floats(wide_), stride, nullptr);
  charge(Operator::kGateUp);
  activations_.reshape(*kernels_, kind_of(weights.down), rows, spec.size);
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* gate = floats(wide_) + static_cast<size_t>(r) * stride;
      activate(*kernels_, spec, gate);
      activations_.set_row(*kernels_, gate, r);
    }
  });
  charge(Operator::kActivation);
}

void Forward::dense(int rows, size_t layer, const model::MlpSpec& spec, const model::MlpWeights& weights) {
  const model::LayerWeights& all = model_->layers[layer];
  for (int first = 0; first < rows; first += kMlpRows) {
    const int count = std::min(kMlpRows, rows - first);
    normed_activations(all.mlp_norm, weights.gate_up, first, count);
    inner_activations(spec, weights, count);
    add_residual(Operator::kDown, weights.down, all.mlp_post_norm, first, count);
  }
}

void Forward::experts(int rows, size_t layer, const model::MoeSpec& spec, const model::MoeWeights& weights) {
  const model::LayerWeights& all = model_->layers[layer];
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  for (int first = 0; first < rows; first += MoeLayers::kRows) {
    const int count = std::min(MoeLayers::kRows, rows - first);
    normed_activations(all.mlp_norm, weights.experts.front().gate_up, first, count);
    moe_.route(spec, weights, floats(normed_), count);
    charge(Operator::kRouter);
    moe_.gather(spec, weights, floats(normed_), activations_);
    charge(Operator::kNorm);
    moe_.multiply();
    charge(Operator::kGateUp);
    moe_.activate(spec, weights);
    charge(Operator::kActivation);
    const bool normed = !all.mlp_post_norm.empty();
    float* hidden = floats(hidden_) + static_cast<size_t>(first) * n;
    kernels::GemmOutput output{.out = normed ? floats(normed_) : hidden, .stride = n};
    if (!normed && !streams_) output.residual = hidden, output.residual_stride = n;
    if (spec.shared) {
      inner_activations(*spec.shared, *weights.shared, count);
      apply(weights.shared->down, floats(attended_), n, nullptr);
      moe_.gate_shared(spec, floats(attended_), count);
      output.addend = floats(attended_), output.addend_stride = n;
    }
    moe_.mix(spec, weights, count, output);
    charge(Operator::kDown);
    if (normed) add_normed(all.mlp_post_norm, first, count);
  }
}

void Forward::final_hidden(int row, std::span<float> out) const {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  QUIRE_CHECK(out.size() == n);
  kernels_->rows->rms_norm({floats(hidden_) + static_cast<size_t>(row) * n, n, model_->final_norm.data(),
                            model_->spec.norm_epsilon, 1, static_cast<int>(n), out.data(), n});
}

void Forward::cap_logits(int rows) {
  const float cap = model_->spec.logit_soft_cap;
  if (cap == 0) return;
  const int vocab = model_->spec.vocab_size;
  pool_->split(rows, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      float* row = floats(logits_) + static_cast<size_t>(i) * static_cast<size_t>(vocab);
      kernels_->rows->soft_cap(row, cap, vocab, row);
    }
  });
}

void Forward::head(const StepBatch& batch, const LogitsSink& sink) {
  const auto n = static_cast<size_t>(model_->spec.hidden_size);
  const int wanted = static_cast<int>(batch.logits_rows.size());
  for (int first = 0; first < wanted; first += logits_rows_) {
    const int count = std::min(logits_rows_, wanted - first);
    activations_.reshape(*kernels_, kind_of(model_->head), count, static_cast<int>(n));
    pool_->split(count, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        float* y = floats(normed_) + static_cast<size_t>(i) * n;
        final_hidden(batch.logits_rows[static_cast<size_t>(first + i)], {y, n});
        activations_.set_row(*kernels_, y, i);
      }
    });
    charge(Operator::kNorm);
    apply(model_->head, floats(logits_), static_cast<size_t>(model_->spec.vocab_size), nullptr);
    cap_logits(count);
    charge(Operator::kHead);
    sink({first, count, floats(logits_)});
    charge(Operator::kSampling);
  }
}

}  // namespace quire::exec
