// The expert layers of a step: routes rows, multiplies each expert with those that chose it, and mixes the results.
//
// Owns the buffers that this takes and borrows model, kernels and threads. Calls come in order, for one block of rows
// at a time: route(), gather(), multiply(), activate(), mix(). What is computed for a row depends on that row alone
// (docs/determinism.md, rule 8). One thread calls: worker 0 of the pool. Nothing is allocated after make().
#pragma once

#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/experts.h"
#include "kernels/kernels.h"
#include "model/load.h"
#include "quire/error.h"

namespace quire::exec {

// What gate_up() gave for a row becomes the input of down, in place of the gate.
void activate(const kernels::KernelTable& kernels, const model::MlpSpec& spec, float* gate_up);

class MoeLayers {
 public:
  // Rows of a block: enough that each of many experts has some.
  static constexpr int kRows = 512;

  // For the model's expert layers, of which there may be none.
  static Result<MoeLayers> make(const model::Model& model, const kernels::KernelTable& kernels, ThreadPool& pool,
                                Allocator& allocator, int max_rows);

  // `x` [rows, hidden size]: the layer's inputs.
  void route(const model::MoeSpec& spec, const model::MoeWeights& weights, const float* x, int rows);
  // `activations` are the rows x made ready for the experts' first matrices; passed over where inputs are weighed.
  void gather(const model::MoeSpec& spec, const model::MoeWeights& weights, const float* x,
              const kernels::Activations& activations);
  void multiply() { kernels::gemm(*kernels_, products_, *pool_); }
  void activate(const model::MoeSpec& spec, const model::MoeWeights& weights);
  // In place: the shared expert's results times their gates.
  void gate_shared(const model::MoeSpec& spec, float* shared, int rows);
  // Writes the sums over experts, with output.addend and output.residual.
  void mix(const model::MoeSpec& spec, const model::MoeWeights& weights, int rows, const kernels::GemmOutput& output);

 private:
  template <class F>
  void for_each_pair(F f);
  MoeLayers(const kernels::KernelTable& kernels, ThreadPool& pool, int hidden)
      : kernels_(&kernels), pool_(&pool), hidden_(hidden) {}
  Result<void> reserve(const model::Model& model, Allocator& allocator, int rows);

  const kernels::KernelTable* kernels_;
  ThreadPool* pool_;
  int hidden_;
  Buffer scores_;                       // [rows][scores]
  Buffer wide_;                         // [pairs][gate and up]
  Buffer weighed_;                      // [workers][hidden size]
  std::vector<float> ones_;             // [pairs], the weights of results whose inputs were weighed
  std::vector<kernels::Route> routes_;  // [rows][chosen]
  kernels::Activations score_inputs_;
  kernels::ExpertPairs pairs_;
  kernels::ExpertActivations inputs_, inner_;
  std::vector<kernels::ExpertProduct> products_;
  std::vector<kernels::ExpertTerm> terms_;
  kernels::MixWorkspace workspace_;
};

}  // namespace quire::exec
