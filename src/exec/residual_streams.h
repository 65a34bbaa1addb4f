// The residual streams of a step, for models that keep several (kernels/residual_streams.h).
//
// Calls come in order: begin(), then enter() and leave() around each sublayer, then end(). Between them `x`
// [rows, hidden size] is the embedding, a sublayer's input, its output, and at last the streams' mean. Owns the
// streams, borrows model, kernels and threads. What is computed for a row depends on that row alone
// (docs/determinism.md, rule 17). One thread calls: worker 0 of the pool. Nothing is allocated after make().
#pragma once

#include <array>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "model/load.h"
#include "quire/error.h"

namespace quire::exec {

class ResidualStreams {
 public:
  // For steps of up to `max_rows` tokens. The model's spec has streams.
  static Result<ResidualStreams> make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                                      Allocator& allocator, int max_rows);

  void begin(const float* x, int rows);
  void enter(const model::StreamsWeights& weights, int rows, float* x);
  void leave(int rows, float* x);
  void end(int rows, float* x);

 private:
  ResidualStreams(const model::ModelSpec& spec, const kernels::KernelTable& kernels, ThreadPool& pool)
      : kernels_(&kernels),
        pool_(&pool),
        shape_(*spec.streams),
        hidden_(spec.hidden_size),
        epsilon_(spec.norm_epsilon) {}

  size_t width() const { return static_cast<size_t>(shape_.count) * static_cast<size_t>(hidden_); }
  float* factors(int row) const;  // of the sublayer that runs, as kernels::stream_factors() makes them
  // The row's streams, and x behind them.
  std::array<float*, kernels::kMostStreams + 1> streams(int row, float* x) const;

  const kernels::KernelTable* kernels_;
  ThreadPool* pool_;
  kernels::StreamShape shape_;
  int hidden_;
  float epsilon_;
  Buffer streams_;  // [rows][count][hidden size]
  Buffer normed_;   // [a block's rows][count][hidden size]
  Buffer factors_;  // [rows][scores]
  kernels::Activations activations_;
};

}  // namespace quire::exec
