// What layers mix tokens with: attention, the gated delta rule, latent attention and its indexers.
#include <algorithm>

#include "base/overloaded.h"
#include "exec/forward.h"
#include "kernels/row_ops.h"

namespace quire::exec {
namespace {

// Null: all weights are 1.
const float* weights_of(const std::vector<float>& norm) { return norm.empty() ? nullptr : norm.data(); }

}  // namespace

// In place, on the rows of q, and of k where the layer makes them.
void Forward::rope_and_norm(const StepBatch& batch, const model::AttentionSpec& spec,
                            const model::AttentionWeights& weights) {
  const auto stride = static_cast<size_t>(spec.qkv.rows());
  const auto d = static_cast<size_t>(spec.head_dim);
  const float epsilon = model_->spec.norm_epsilon;
  const int heads = spec.q_heads + (spec.keeps_own() ? spec.kv_heads : 0);
  pool_->split(batch.rows(), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* q = floats(wide_) + static_cast<size_t>(r) * stride;
      float* k = q + static_cast<size_t>(spec.q_heads) * d;
      if (spec.q_norm.present())
        kernels_->rows->rms_norm({q, d, weights_of(weights.q_norm), epsilon, spec.q_heads, spec.head_dim, q, d});
      if (spec.k_norm.present())
        kernels_->rows->rms_norm({k, d, weights_of(weights.k_norm), epsilon, spec.kv_heads, spec.head_dim, k, d});
      const int position = batch.positions[static_cast<size_t>(r)];
      if (spec.growth.step > 0) {
        const float factor = kernels::query_factor(spec.growth.step, spec.growth.strength, position);
        kernels_->rows->scale(q, factor, spec.q_rows(), q);
      }
      if (spec.rope >= 0) kernels::apply_rope(*kernels_, ropes_[static_cast<size_t>(spec.rope)], position, q, heads, d);
    }
  });
  charge(Operator::kRope);
}

// x += post(mixer(norm(x))): the mixers leave their result's activations to be multiplied with the output matrix.
void Forward::mix(const StepBatch& batch, const AttentionGroups& caches, size_t layer) {
  const model::LayerSpec& spec = model_->spec.layers[layer];
  const model::LayerWeights& weights = model_->layers[layer];
  const model::Linear* output = nullptr;
  const auto run = [&](const auto& mixer, const auto& w, const model::Linear& input, auto compute) {
    normed_activations(weights.attention_norm, input, 0, batch.rows());
    (this->*compute)(batch, caches, mixer, w);
    output = &w.output;
  };
  std::visit(Overloaded{[&](const model::AttentionSpec& a) {
                          const auto& w = std::get<model::AttentionWeights>(weights.mixer);
                          run(a, w, w.qkv, &Forward::attention);
                        },
                        [&](const model::GatedDeltaSpec& g) {
                          const auto& w = std::get<model::GatedDeltaWeights>(weights.mixer);
                          run(g, w, w.input, &Forward::gated_delta);
                        },
                        [&](const model::LatentSpec& l) {
                          const auto& w = std::get<model::LatentWeights>(weights.mixer);
                          run(l, w, w.input, &Forward::latent);
                        }},
             spec.mixer);
  add_residual(Operator::kOutput, *output, weights.attention_post_norm, 0, batch.rows());
}

void Forward::attention(const StepBatch& batch, const AttentionGroups& caches, const model::AttentionSpec& spec,
                        const model::AttentionWeights& weights) {
  const auto stride = static_cast<size_t>(spec.qkv.rows());
  const auto q_width = static_cast<size_t>(spec.q_rows()), kv_width = static_cast<size_t>(spec.kv_rows());
  apply(weights.qkv, floats(wide_), stride, nullptr);
  charge(Operator::kQkv);
  rope_and_norm(batch, spec, weights);

  const LayerCache& cache = caches.layer(spec.name);
  const AttentionGroup& group = caches.group(cache);
  if (spec.keeps_own()) {
    const float* k = floats(wide_) + q_width;
    const auto& slots = batch.tables(group.cache_group).slots;
    kernels::write_kv(*kernels_, group.shape, cache.view, {slots, k, k + kv_width, stride, stride}, *pool_);
    charge(Operator::kKvWrite);
  }
  const kernels::AttentionRows rows{.q = floats(wide_),
                                    .out = floats(attended_),
                                    .q_stride = stride,
                                    .out_stride = q_width,
                                    .scale = spec.scale,
                                    .soft_cap = spec.soft_cap,
                                    .sinks = weights.sinks.empty() ? nullptr : weights.sinks.data()};
  kernels::attend(*kernels_, group.plan, cache.view, rows, workspace_, *pool_);
  charge(Operator::kAttention);
  if (spec.gated) gate_attended(batch.rows(), floats(wide_) + q_width + 2 * kv_width, stride, spec.q_rows());

  attended_activations(weights.output, batch.rows());
}

// The rows of attended_, `width` wide, times the sigmoid of gates that are `stride` apart.
void Forward::gate_attended(int rows, const float* gates, size_t stride, int width) {
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* row = floats(attended_) + static_cast<size_t>(r) * static_cast<size_t>(width);
      kernels_->rows->sigmoid_mul(gates + static_cast<size_t>(r) * stride, row, width, row);
    }
  });
}

// The rows of attended_ become the activations of a mixer's output matrix.
void Forward::attended_activations(const model::Linear& output, int rows) {
  const auto width = static_cast<size_t>(output.cols);
  activations_.reshape(*kernels_, kind_of(output), rows, output.cols);
  pool_->split(rows,
               [&](int begin, int end) { activations_.set_rows(*kernels_, floats(attended_), width, begin, end); });
  charge(Operator::kNorm);
}

// wide_ holds the rows of the input matrix, then those of z and a if they come through narrow layers.
Forward::Gates Forward::delta_inputs(int rows, const model::GatedDeltaSpec& spec,
                                     const model::GatedDeltaWeights& weights) {
  const auto stride = static_cast<size_t>(spec.input.rows());
  apply(weights.input, floats(wide_), stride, nullptr);
  const float* z = floats(wide_) + spec.shape.channels();
  Gates gates = {.z = z, .z_stride = stride, .a = z + spec.z_width(), .a_stride = stride};
  if (spec.narrows_gates()) {
    float* wide = floats(wide_) + static_cast<size_t>(rows) * stride;
    const auto widen = [&](const model::Linear& linear, const float*& x, size_t& x_stride) {
      narrow_activations(linear, x, x_stride, rows);
      x = wide;
      x_stride = static_cast<size_t>(linear.rows);
      apply(linear, wide, x_stride, nullptr);
      wide += static_cast<size_t>(rows) * x_stride;
    };
    widen(weights.z, gates.z, gates.z_stride);
    widen(weights.a, gates.a, gates.a_stride);
  }
  charge(Operator::kQkv);
  return gates;
}

// Rows that lie `stride` apart become the activations of `next`.
void Forward::narrow_activations(const model::Linear& next, const float* x, size_t stride, int rows) {
  const auto width = static_cast<size_t>(next.cols);
  activations_.reshape(*kernels_, kind_of(next), rows, next.cols);
  pool_->split(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* own = floats(normed_) + static_cast<size_t>(r) * width;
      std::copy_n(x + static_cast<size_t>(r) * stride, width, own);
      activations_.set_row(*kernels_, own, r);
    }
  });
}

// A request's running state lies in the block of its last token; the step reads it there and leaves it in the block of
// its own last token, which may be the same.
void Forward::gated_delta(const StepBatch& batch, const AttentionGroups& caches, const model::GatedDeltaSpec& spec,
                          const model::GatedDeltaWeights& weights) {
  const auto width = static_cast<size_t>(spec.shape.value_rows());
  const Gates gates = delta_inputs(batch.rows(), spec, weights);
  const RowCache& cache = caches.rows(spec.name);
  const auto state = [&](int32_t block) { return reinterpret_cast<float*>(cache.view.row(block, 0)); };
  const GroupTables& tables = batch.tables(cache.cache_group);
  states_.clear();
  for (const BatchSequence& sequence : batch.sequences) {
    const auto blocks = tables.row(std::ssize(states_));
    const auto of_token = [&](int64_t position) {
      return state(blocks[static_cast<size_t>(position / cache.block_tokens)]);
    };
    const int64_t first = sequence.first_position;
    states_.push_back({.from = first == 0 ? nullptr : of_token(first - 1),
                       .to = of_token(first + sequence.num_rows - 1),
                       .first_row = sequence.first_row,
                       .num_rows = sequence.num_rows});
  }
  kernels::gated_delta(*kernels_,
                       {.shape = spec.shape,
                        .conv = weights.conv.data(),
                        .rate = weights.rate.data(),
                        .dt_bias = weights.dt_bias.data(),
                        .x = floats(wide_),
                        .b = floats(wide_) + spec.shape.channels() + spec.z_width() + spec.a_width(),
                        .stride = static_cast<size_t>(spec.input.rows()),
                        .a = gates.a,
                        .a_stride = gates.a_stride,
                        .out = floats(attended_),
                        .out_stride = width},
                       states_, *pool_);
  charge(Operator::kAttention);

  activations_.reshape(*kernels_, kind_of(weights.output), batch.rows(), static_cast<int>(width));
  const auto d = static_cast<size_t>(spec.shape.value_dim);
  const auto gate = spec.sigmoid_gate ? kernels_->rows->sigmoid_mul : kernels_->rows->silu_mul;
  pool_->split(batch.rows(), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* y = floats(attended_) + static_cast<size_t>(r) * width;
      kernels_->rows->rms_norm(
          {y, d, weights.norm.data(), model_->spec.norm_epsilon, spec.shape.heads, spec.shape.value_dim, y, d});
      gate(gates.z + static_cast<size_t>(r) * gates.z_stride, y, static_cast<int>(width), y);
      activations_.set_row(*kernels_, y, r);
    }
  });
  charge(Operator::kNorm);
}

// wide_ holds the rows of the input matrix, then those of the queries if they come through a narrow layer.
Forward::Queries Forward::latent_queries(const StepBatch& batch, const model::LatentSpec& spec,
                                         const model::LatentWeights& weights) {
  const auto stride = static_cast<size_t>(spec.input.rows()), narrow = static_cast<size_t>(spec.query_rank);
  const float epsilon = spec.norm_epsilon;
  const kernels::RopeTable* rope = spec.rope < 0 ? nullptr : &ropes_[static_cast<size_t>(spec.rope)];
  apply(weights.input, floats(wide_), stride, nullptr);
  charge(Operator::kQkv);
  if (spec.narrows_queries()) activations_.reshape(*kernels_, kind_of(weights.query), batch.rows(), spec.query_rank);
  pool_->split(batch.rows(), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* row = floats(wide_) + static_cast<size_t>(r) * stride;
      if (spec.narrows_queries()) {
        float* query = floats(normed_) + static_cast<size_t>(r) * narrow;
        kernels_->rows->rms_norm({row, narrow, weights.query_norm.data(), epsilon, 1, spec.query_rank, query, narrow});
        activations_.set_row(*kernels_, query, r);
      }
      float* latent = row + spec.latent_offset();
      const int rank = spec.shape.rank;
      kernels_->rows->rms_norm({latent, stride, weights.latent_norm.data(), epsilon, 1, rank, latent, stride});
      if (rope != nullptr)
        kernels::apply_rope(*kernels_, *rope, batch.positions[static_cast<size_t>(r)], latent + rank, 1, stride);
    }
  });
  charge(Operator::kNorm);
  Queries queries{floats(wide_), stride};
  if (spec.narrows_queries()) {
    queries = {floats(wide_) + static_cast<size_t>(batch.rows()) * stride, static_cast<size_t>(spec.query.rows())};
    apply(weights.query, queries.rows, queries.stride, nullptr);
    charge(Operator::kQkv);
  }
  const auto turn = [&](int index, int offset, int heads, int head_dim) {
    if (index < 0) return;
    const kernels::RopeTable& table = ropes_[static_cast<size_t>(index)];
    pool_->split(batch.rows(), [&](int begin, int end) {
      for (int r = begin; r < end; ++r) {
        float* first = queries.rows + static_cast<size_t>(r) * queries.stride + offset;
        kernels::apply_rope(*kernels_, table, batch.positions[static_cast<size_t>(r)], first, heads,
                            static_cast<size_t>(head_dim));
      }
    });
  };
  turn(spec.rope, spec.shape.nope_dim, spec.shape.heads, spec.shape.query_dim());
  if (const auto& i = spec.indexer) turn(i->rope, spec.query_rows(), i->shape.heads, i->shape.dim);
  charge(Operator::kRope);
  return queries;
}

void Forward::latent(const StepBatch& batch, const AttentionGroups& caches, const model::LatentSpec& spec,
                     const model::LatentWeights& weights) {
  const Queries queries = latent_queries(batch, spec, weights);
  const auto stride = static_cast<size_t>(spec.input.rows());
  const RowCache& cache = caches.rows(spec.name);
  kernels::LatentShape shape = spec.shape;
  shape.dtype = cache.dtype;
  const GroupTables& tables = batch.tables(cache.cache_group);
  kernels::write_latents(shape, cache.view, tables.slots, floats(wide_) + spec.latent_offset(), stride, *pool_);
  charge(Operator::kKvWrite);
  if (spec.indexer) select(batch, caches, spec, *weights.indexer, queries);
  kernels::attend_latents(*kernels_,
                          {.shape = shape,
                           .cache = cache.view,
                           .expansion = &weights.expansion,
                           .scale = spec.scale,
                           .q = queries.rows,
                           .q_stride = queries.stride,
                           .out = floats(attended_),
                           .out_stride = static_cast<size_t>(spec.value_rows()),
                           .selected = spec.indexer || spec.reads_last_choice ? &selection_ : nullptr},
                          sequences_of(batch, cache), latent_workspace_, *pool_);
  charge(Operator::kAttention);
  attended_activations(weights.output, batch.rows());
}

void Forward::select(const StepBatch& batch, const AttentionGroups& caches, const model::LatentSpec& spec,
                     const model::PooledIndexWeights& weights, const Queries& queries) {
  const model::PooledIndexSpec& index = *spec.indexer;
  const RowCache& keys = caches.rows(index.keys_name);
  const auto stride = static_cast<size_t>(spec.input.rows());
  const float* key = floats(wide_) + spec.latent_offset() + spec.shape.row_dim();
  kernels::PooledIndexArgs args = {.shape = index.shape,
                                   .norm_weight = weights.norm_weight.data(),
                                   .norm_bias = weights.norm_bias.data(),
                                   .norm_epsilon = index.norm_epsilon,
                                   .rope = index.rope < 0 ? nullptr : &ropes_[static_cast<size_t>(index.rope)],
                                   .key = key,
                                   .weight = key + index.shape.dim + index.gate_rows(),
                                   .stride = stride,
                                   .q = queries.rows + spec.query_rows(),
                                   .q_stride = queries.stride,
                                   .keys = keys.view,
                                   .key_slots = batch.tables(keys.cache_group).slots_for(index.shape.pool)};
  args.shape.dtype = keys.dtype;
  if (index.shape.keeps_ring()) {
    const RowCache& ring = caches.rows(index.ring_name);
    args.position_bias = weights.position_bias.data();
    args.gate = key + index.shape.dim;
    args.ring = ring.view;
    args.ring_slots = batch.tables(ring.cache_group).slots;
  }
  const auto sequences = sequences_of(batch, keys);
  kernels::pool_keys(*kernels_, args, sequences, index_workspace_, *pool_);
  kernels::select_tokens(*kernels_, args, sequences, index_workspace_, *pool_, selection_);
}

// The step's sequences with the manager blocks that the rows of `cache` lie in.
std::span<const kernels::AttentionSequence> Forward::sequences_of(const StepBatch& batch, const RowCache& cache) {
  list_sequences(batch, batch.tables(cache.cache_group), sequences_);
  return sequences_;
}

}  // namespace quire::exec
