#include <algorithm>
#include <cmath>

#include "base/overloaded.h"
#include "exec/step_profile.h"

namespace quire::exec {
namespace {

using kernels::ActivationKind;
using kernels::Unit;
using kernels::Work;

// Operations on one number.
constexpr double kNorm = 4;        // square, sum, and two factors
constexpr double kRound = 2;       // a factor, and to nearest
constexpr double kRope = 3;        // two products and a sum for each of a pair
constexpr double kActivation = 5;  // of a gate and what it lets through: exponential, sum, quotient, two products
constexpr double kFloat = sizeof(float);

int64_t first_seen(int64_t position, int window, int chunk) {
  int64_t first = 0;
  if (window > 0) first = std::max<int64_t>(first, position - window + 1);
  if (chunk > 0) first = std::max(first, position / chunk * chunk);
  return first;
}

// Bytes of a row that is ready for a product.
double ready_bytes(ActivationKind kind, double inputs) {
  switch (kind) {
    case ActivationKind::kInt8:
      return inputs * static_cast<double>(kernels::kGroupRowBytes) / kernels::kGroup;
    case ActivationKind::kBF16:
      return inputs * 2;
    case ActivationKind::kF32:
    case ActivationKind::kRounded:
      break;
  }
  return inputs * kFloat;
}

ActivationKind kind_of(const model::Linear& linear) {
  return kernels::activation_kind(linear.parts.front().matrix.layout());
}

// Work on rows between operators, by the units of floats.
Work on_rows(double bytes, double operations) {
  return {.cached_bytes = bytes, .operations = kernels::operations_of(Unit::kF32, operations)};
}

// Work on what memory holds, by the same.
Work in_memory(double bytes, double operations = 0) {
  return {.bytes = bytes, .operations = kernels::operations_of(Unit::kF32, operations)};
}

Work times(double count, Work work) {
  work.bytes *= count;
  work.cached_bytes *= count;
  for (double& operations : work.operations) operations *= count;
  return work;
}

// Rows are read as floats and left ready for `next`, at so many operations a number.
Work prepared(const model::Linear& next, double rows, double operations) {
  const double inputs = next.cols, kept = ready_bytes(kind_of(next), inputs);
  const double rounding = kind_of(next) == ActivationKind::kF32 ? 0 : kRound;
  return on_rows(rows * (inputs * kFloat + kept), rows * inputs * (operations + rounding));
}

// Rows of floats that are changed in place.
Work changed(double numbers, double operations) { return on_rows(2 * numbers * kFloat, numbers * operations); }

double bytes_of(DType dtype) { return static_cast<double>(size_of(dtype)); }

class Count {
 public:
  Count(const model::Model& model, const kernels::KernelTable& kernels, const StepBatch& batch,
        const AttentionGroups& caches)
      : model_(model), kernels_(kernels), batch_(batch), caches_(caches), rows_(batch.rows()) {}

  StepWork all() {
    embed();
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      const model::LayerSpec& spec = model_.spec.layers[layer];
      const model::LayerWeights& weights = model_.layers[layer];
      streams(weights.attention_streams);
      streams(weights.mlp_streams);
      std::visit(
          Overloaded{
              [&](const model::AttentionSpec& s) { mix(s, std::get<model::AttentionWeights>(weights.mixer), weights); },
              [&](const model::GatedDeltaSpec& s) {
                mix(s, std::get<model::GatedDeltaWeights>(weights.mixer), weights);
              },
              [&](const model::LatentSpec& s) { mix(s, std::get<model::LatentWeights>(weights.mixer), weights); }},
          spec.mixer);
      std::visit(Overloaded{[&](const model::MlpWeights& w) { mlp(w, weights); },
                            [&](const model::MoeWeights& w) { mlp(std::get<model::MoeSpec>(spec.mlp), w, weights); }},
                 weights.mlp);
    }
    head();
    return work_;
  }

 private:
  Work& of(Operator op) { return work_[static_cast<size_t>(op)]; }
  Work product(const model::Linear& linear, bool residual = false) const {
    return work_of_product(linear, kernels_, rows_, residual);
  }

  void embed() {
    const kernels::PackedMatrix& matrix = model_.embedding_matrix();
    const double row = static_cast<double>(matrix.bytes()) / matrix.outputs(), n = model_.spec.hidden_size;
    of(Operator::kEmbed) += in_memory(rows_ * row);
    of(Operator::kEmbed) += on_rows(rows_ * n * kFloat, model_.spec.scale_embeddings ? rows_ * n : 0);
  }

  // Several streams are normed and scored; they make the sublayer's input, and take its output.
  void streams(const std::optional<model::StreamsWeights>& w) {
    if (!w) return;
    const double count = model_.spec.streams->count, n = model_.spec.hidden_size;
    of(Operator::kNorm) += prepared(w->scores, rows_, kNorm);
    of(Operator::kNorm) += product(w->scores);
    of(Operator::kNorm) += on_rows(rows_ * n * kFloat * (3 * count + 2), rows_ * n * 2 * count * (count + 2));
  }

  // linear(x) is added to the residual stream, where there is a norm in between with another pass.
  void add_residual(Operator op, const model::Linear& linear, bool post_norm) {
    of(op) += product(linear, !post_norm && !model_.spec.streams);
    if (post_norm)
      of(Operator::kNorm) += on_rows(3.0 * rows_ * linear.rows * kFloat, rows_ * linear.rows * (kNorm + 1));
  }

  void mix(const model::AttentionSpec& s, const model::AttentionWeights& w, const model::LayerWeights& layer) {
    const LayerCache& cache = caches_.layer(s.name);
    const DType dtype = caches_.group(cache).shape.dtype;
    of(Operator::kNorm) += prepared(w.qkv, rows_, kNorm);
    of(Operator::kQkv) += product(w.qkv);
    const double q = s.q_rows(), k = s.kv_rows();
    if (s.q_norm.present()) of(Operator::kRope) += changed(rows_ * q, kNorm);
    if (s.k_norm.present()) of(Operator::kRope) += changed(rows_ * k, kNorm);
    if (s.growth.step > 0) of(Operator::kRope) += changed(rows_ * q, 1);
    if (s.rope >= 0) of(Operator::kRope) += changed(rows_ * (q + k), kRope);
    if (s.keeps_own()) {
      const auto kept = kernels::kv_head_bytes(dtype, 1, s.head_dim) * static_cast<size_t>(s.kv_heads);
      of(Operator::kKvWrite) += in_memory(rows_ * static_cast<double>(kept));
      of(Operator::kKvWrite) += on_rows(rows_ * 2 * k * kFloat, dtype == DType::kF32 ? 0 : rows_ * 2 * k * kRound);
    }
    of(Operator::kAttention) += work_of_attention(s, dtype, kernels_, batch_);
    of(Operator::kNorm) += prepared(w.output, rows_, s.gated ? kActivation : 0);
    if (s.gated) of(Operator::kNorm) += on_rows(rows_ * q * kFloat, 0);
    add_residual(Operator::kOutput, w.output, !layer.attention_post_norm.empty());
  }

  void mix(const model::GatedDeltaSpec& s, const model::GatedDeltaWeights& w, const model::LayerWeights& layer) {
    of(Operator::kNorm) += prepared(w.input, rows_, kNorm);
    of(Operator::kQkv) += product(w.input);
    if (s.narrows_gates())
      for (const model::Linear* linear : {&w.z, &w.a}) {
        of(Operator::kQkv) += prepared(*linear, rows_, 0);
        of(Operator::kQkv) += product(*linear);
      }
    const kernels::GatedDeltaShape& shape = s.shape;
    const double state = static_cast<double>(kernels::gated_delta_state_size(shape));
    const double matrix = static_cast<double>(shape.heads) * shape.key_dim * shape.value_dim;
    // A state decays, gives what it holds of the key, is corrected and gives what it holds of the query.
    const double operations = matrix * 7 + 2.0 * shape.channels() * shape.conv_width;
    of(Operator::kAttention) += in_memory(2 * state * kFloat * static_cast<double>(batch_.sequences.size()));
    of(Operator::kAttention) += on_rows(rows_ * static_cast<double>(w.input.rows) * kFloat, rows_ * operations);
    of(Operator::kNorm) += prepared(w.output, rows_, kNorm + kActivation);
    add_residual(Operator::kOutput, w.output, !layer.attention_post_norm.empty());
  }

  void mix(const model::LatentSpec& s, const model::LatentWeights& w, const model::LayerWeights& layer) {
    const DType dtype = caches_.rows(s.name).dtype;
    of(Operator::kNorm) += prepared(w.input, rows_, kNorm);
    of(Operator::kQkv) += product(w.input);
    if (s.narrows_queries()) {
      of(Operator::kQkv) += product(w.query);
      of(Operator::kNorm) += prepared(w.query, rows_, kNorm);
    }
    // The latent's own norm and rope are part of the pass that prepares the queries' input.
    of(Operator::kNorm) += changed(rows_ * static_cast<double>(s.shape.rank), kNorm);
    if (s.rope >= 0) {
      of(Operator::kNorm) += changed(rows_ * static_cast<double>(s.shape.rope_dim), kRope);
      of(Operator::kRope) += changed(rows_ * static_cast<double>(s.shape.heads) * s.shape.rope_dim, kRope);
    }
    const double row = s.shape.row_dim();
    of(Operator::kKvWrite) += in_memory(rows_ * row * bytes_of(dtype));
    of(Operator::kKvWrite) += on_rows(rows_ * row * kFloat, dtype == DType::kF32 ? 0 : rows_ * row * kRound);
    of(Operator::kAttention) += latent_attention(s, w, dtype);
    of(Operator::kNorm) += prepared(w.output, rows_, 0);
    add_residual(Operator::kOutput, w.output, !layer.attention_post_norm.empty());
  }

  // With an indexer the keys that it scores; with a choice, its own or an earlier one, at most what that leaves.
  Work latent_attention(const model::LatentSpec& s, const model::LatentWeights& w, DType dtype) {
    if (s.indexer) most_chosen_ = s.indexer->shape.most_selected();
    const kernels::LatentShape& shape = s.shape;
    Work work;
    double seen = 0, read = 0;
    for (const BatchSequence& sequence : batch_.sequences) {
      double of_rows = seen_keys(sequence, 0, 0), of_all = read_keys(sequence, 0, 0);
      if (s.indexer) {
        const kernels::PooledIndexShape& index = s.indexer->shape;
        const DType keys = caches_.rows(s.indexer->keys_name).dtype;
        work += in_memory(of_all / index.pool * index.dim * bytes_of(keys),
                          of_rows / index.pool * index.heads * 2 * (index.dim + 1));
      }
      if (s.indexer || s.reads_last_choice) {
        of_rows = std::min(of_rows, static_cast<double>(sequence.num_rows) * most_chosen_);
        of_all = std::min(of_all, of_rows);
      }
      seen += of_rows;
      read += of_all;
    }
    const double absorbed = static_cast<double>(shape.expansion_rows()) * shape.rank;
    work += in_memory(read * shape.row_dim() * bytes_of(dtype) + absorbed * bytes_of(w.expansion.dtype()),
                      seen * shape.heads * 2 * (shape.row_dim() + shape.rank) + rows_ * 2 * absorbed);
    work += on_rows(rows_ * shape.heads * static_cast<double>(shape.query_dim() + shape.value_dim) * kFloat, 0);
    return work;
  }

  void mlp(const model::MlpWeights& w, const model::LayerWeights& layer) {
    of(Operator::kNorm) += prepared(w.gate_up, rows_, kNorm);
    of(Operator::kGateUp) += product(w.gate_up);
    of(Operator::kActivation) += activation(w.down, rows_);
    add_residual(Operator::kDown, w.down, !layer.mlp_post_norm.empty());
  }

  Work activation(const model::Linear& down, double rows) const {
    Work work = prepared(down, rows, kActivation);
    work.cached_bytes += rows * down.cols * kFloat;  // the other half of gate and up
    return work;
  }

  void mlp(const model::MoeSpec& s, const model::MoeWeights& w, const model::LayerWeights& layer) {
    const double share = static_cast<double>(s.router.chosen) / s.router.experts;
    const double active = s.router.experts * (1 - std::pow(1 - share, rows_));
    const double pairs = static_cast<double>(rows_) * s.router.chosen;
    const int rows = std::max(1, static_cast<int>(pairs / active));  // of an expert
    const model::MlpWeights& expert = w.experts.front();
    of(Operator::kRouter) += product(w.scores);
    of(Operator::kNorm) += prepared(expert.gate_up, rows_, kNorm);
    of(Operator::kNorm) += on_rows(2 * pairs * ready_bytes(kind_of(expert.gate_up), expert.gate_up.cols), 0);
    of(Operator::kGateUp) += times(active, work_of_product(expert.gate_up, kernels_, rows, false));
    of(Operator::kActivation) += activation(expert.down, pairs);
    of(Operator::kDown) += times(active, work_of_product(expert.down, kernels_, rows, true));
    if (w.shared) {
      of(Operator::kGateUp) += product(w.shared->gate_up);
      of(Operator::kActivation) += activation(w.shared->down, rows_);
      of(Operator::kDown) += product(w.shared->down);
    }
    if (!layer.mlp_post_norm.empty())
      of(Operator::kNorm) += on_rows(3.0 * rows_ * model_.spec.hidden_size * kFloat, rows_ * (kNorm + 1));
  }

  void head() {
    const auto wanted = static_cast<int>(batch_.logits_rows.size());
    if (wanted == 0) return;
    of(Operator::kNorm) += prepared(model_.head, wanted, kNorm);
    of(Operator::kHead) += work_of_product(model_.head, kernels_, wanted, false);
    const double logits = static_cast<double>(wanted) * model_.spec.vocab_size;
    of(Operator::kSampling) += on_rows(logits * kFloat, logits);
  }

  const model::Model& model_;
  const kernels::KernelTable& kernels_;
  const StepBatch& batch_;
  const AttentionGroups& caches_;
  int rows_;
  int most_chosen_ = 0;  // by the last indexer
  StepWork work_ = {};
};

}  // namespace

double seen_keys(const BatchSequence& sequence, int window, int chunk) {
  int64_t keys = 0;
  for (int64_t p = sequence.first_position; p < sequence.first_position + sequence.num_rows; ++p)
    keys += p - first_seen(p, window, chunk) + 1;
  return static_cast<double>(keys);
}

double read_keys(const BatchSequence& sequence, int window, int chunk) {
  return static_cast<double>(sequence.first_position + sequence.num_rows -
                             first_seen(sequence.first_position, window, chunk));
}

Work work_of_product(const model::Linear& linear, const kernels::KernelTable& kernels, int rows, bool residual) {
  Work work;
  for (const auto& part : linear.parts) {
    const ActivationKind kind = kernels::activation_kind(part.matrix.layout());
    const double k = linear.cols, n = part.matrix.outputs();
    const double written = n * kFloat * (residual ? 2 : 1);
    work += {.bytes = static_cast<double>(part.matrix.bytes()),
             .cached_bytes = rows * (ready_bytes(kind, k) + written),
             .operations = kernels::operations_of(kernels::unit_of(kernels, kind, rows), 2.0 * rows * k * n)};
  }
  return work;
}

Work work_of_attention(const model::AttentionSpec& spec, DType cache, const kernels::KernelTable& kernels,
                       const StepBatch& batch) {
  const double width = spec.q_heads * spec.head_dim;
  const auto key = static_cast<double>(kernels::kv_head_bytes(cache, 1, spec.head_dim)) * spec.kv_heads;
  Work work = on_rows(2.0 * batch.rows() * width * kFloat, 0);
  // A row's query heads of one kv head read the same keys, and so do a sequence's rows.
  for (const BatchSequence& s : batch.sequences) {
    const Unit unit = kernels::attention_unit(kernels, cache, s.num_rows * (spec.q_heads / spec.kv_heads));
    work += {.bytes = read_keys(s, spec.window, spec.chunk) * key,
             .operations = kernels::operations_of(unit, 4 * width * seen_keys(s, spec.window, spec.chunk))};
  }
  return work;
}

StepWork work_of_step(const model::Model& model, const kernels::KernelTable& kernels, const StepBatch& batch,
                      const AttentionGroups& caches) {
  return Count(model, kernels, batch, caches).all();
}

}  // namespace quire::exec
