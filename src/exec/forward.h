// The forward pass: one executor for every ModelSpec.
//
// A Forward owns the buffers of a step and borrows model, kernels and threads. run() writes the step's keys and values
// through the slots of each layer's own KV cache group, attends, and hands out logits for the rows that asked for them,
// in blocks, so that memory stays bounded whatever the vocabulary. What it computes for a row depends on the row's
// request alone (docs/determinism.md). One thread calls it: worker 0 of the pool.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "exec/attention_groups.h"
#include "exec/moe.h"
#include "exec/residual_streams.h"
#include "exec/step_batch.h"
#include "exec/step_profile.h"
#include "kernels/attention.h"
#include "kernels/gated_delta.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/latent_attention.h"
#include "kernels/pooled_index.h"
#include "kernels/rope.h"
#include "model/load.h"
#include "quire/error.h"

namespace quire::exec {

// Logits of `count` rows: entry i belongs to batch.logits_rows[first + i] and lies at logits + i * vocab_size. Valid
// during the call only.
struct LogitsBlock {
  int first = 0;
  int count = 0;
  float* logits = nullptr;
};
using LogitsSink = std::function<void(const LogitsBlock&)>;

class Forward {
 public:
  // Room for steps of up to `max_rows` tokens at positions below `max_positions`.
  static Result<Forward> make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                              Allocator& allocator, int max_rows, int max_positions);

  // `caches` must hold every attention layer of the model and be prepared for this batch. A profile is charged with
  // what the step takes, but counts no step.
  void run(const StepBatch& batch, const AttentionGroups& caches, const LogitsSink& sink,
           StepProfile* profile = nullptr);

  // The final hidden state of a row of the step that run() computed last: the residual stream after the last norm,
  // hidden_size numbers, before they are made ready for the LM head.
  void final_hidden(int row, std::span<float> out) const;

 private:
  Forward(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool, MoeLayers moe)
      : model_(&model), kernels_(&kernels), pool_(&pool), moe_(std::move(moe)) {}

  static float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  void embed(const StepBatch& batch);
  // Around a sublayer, where there are several residual streams.
  void enter(const std::optional<model::StreamsWeights>& weights, int rows);
  void leave(int rows);
  void mix(const StepBatch& batch, const AttentionGroups& caches, size_t layer);
  void attention(const StepBatch& batch, const AttentionGroups& caches, const model::AttentionSpec& spec,
                 const model::AttentionWeights& weights);
  void gated_delta(const StepBatch& batch, const AttentionGroups& caches, const model::GatedDeltaSpec& spec,
                   const model::GatedDeltaWeights& weights);
  // Makes q, k and v ready in wide_, and the gates of the rule.
  struct Gates {
    const float* z = nullptr;
    size_t z_stride = 0;
    const float* a = nullptr;
    size_t a_stride = 0;
  };
  Gates delta_inputs(int rows, const model::GatedDeltaSpec& spec, const model::GatedDeltaWeights& weights);
  void latent(const StepBatch& batch, const AttentionGroups& caches, const model::LatentSpec& spec,
              const model::LatentWeights& weights);
  // Makes the queries of a latent layer and its indexer ready in wide_, and what the layer keeps.
  struct Queries {
    float* rows = nullptr;
    size_t stride = 0;
  };
  Queries latent_queries(const StepBatch& batch, const model::LatentSpec& spec, const model::LatentWeights& weights);
  // Leaves what the rows read in selection_.
  void select(const StepBatch& batch, const AttentionGroups& caches, const model::LatentSpec& spec,
              const model::PooledIndexWeights& weights, const Queries& queries);
  void cap_logits(int rows);
  void feed_forward(int rows, size_t layer);
  void dense(int rows, size_t layer, const model::MlpSpec& spec, const model::MlpWeights& weights);
  void experts(int rows, size_t layer, const model::MoeSpec& spec, const model::MoeWeights& weights);
  void inner_activations(const model::MlpSpec& spec, const model::MlpWeights& weights, int rows);
  void head(const StepBatch& batch, const LogitsSink& sink);

  void gate_attended(int rows, const float* gates, size_t stride, int width);
  void attended_activations(const model::Linear& output, int rows);
  std::span<const kernels::AttentionSequence> sequences_of(const StepBatch& batch, const RowCache& cache);
  void rope_and_norm(const StepBatch& batch, const model::AttentionSpec& spec, const model::AttentionWeights& weights);
  void normed_activations(std::span<const float> norm, const model::Linear& next, int first_row, int rows);
  void narrow_activations(const model::Linear& next, const float* x, size_t stride, int rows);
  void add_residual(Operator op, const model::Linear& linear, std::span<const float> post_norm, int first_row,
                    int rows);
  void add_normed(std::span<const float> post_norm, int first_row, int rows);
  void apply(const model::Linear& linear, float* out, size_t stride, const float* residual);
  kernels::ActivationKind kind_of(const model::Linear& linear) const;
  // What was done since the last call was this.
  void charge(Operator op) {
    if (profile_ != nullptr) profile_->charge(op);
  }

  const model::Model* model_;
  const kernels::KernelTable* kernels_;
  ThreadPool* pool_;
  StepProfile* profile_ = nullptr;  // of the step that runs
  MoeLayers moe_;
  std::optional<ResidualStreams> streams_;  // where there are several
  std::vector<kernels::RopeTable> ropes_;
  float embedding_scale_ = 1;
  int logits_rows_ = 0;  // rows of a logits block

  // [rows][width] fp32 unless said otherwise.
  Buffer hidden_;    // the residual stream; where there are several, what a sublayer reads, then what it makes
  Buffer wide_;      // what a mixer's matrices make; then gate and up
  Buffer attended_;  // output of attention; then of a shared expert
  Buffer normed_;    // input of a matrix, before it is made ready
  Buffer logits_;
  kernels::Activations activations_;
  kernels::AttentionWorkspace workspace_;
  kernels::LatentWorkspace latent_workspace_;
  kernels::IndexWorkspace index_workspace_;
  std::vector<kernels::GatedDeltaSequence> states_;  // of the step
  std::vector<kernels::AttentionSequence> sequences_;
  kernels::TokenSelection selection_;  // of the last indexer
};

}  // namespace quire::exec
