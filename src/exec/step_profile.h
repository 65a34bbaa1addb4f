// A StepProfile tells where the time of steps goes, operator by operator, and what each had to do.
//
// Whoever runs a step charges each operator when it is done with the time since the last charge, so that nothing is
// left out; without a profile no clock is read. One thread writes and reads it, the one that runs the steps.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "exec/attention_groups.h"
#include "exec/step_batch.h"
#include "kernels/roofline.h"
#include "model/load.h"

namespace quire::exec {

// In the order of a step. A layer that mixes tokens otherwise than by attention has its own parts under the names that
// stand at the same place: its input matrices under qkv, its rule under attention.
enum class Operator : uint8_t {
  kEmbed,
  kNorm,  // and preparing rows for a product, here and of attention's output
  kQkv,
  kRope,  // and the norms of q and k
  kKvWrite,
  kAttention,
  kOutput,  // of attention
  kRouter,  // and choosing experts
  kGateUp,
  kActivation,  // and preparing its rows
  kDown,
  kHead,
  kSampling,
  kOutside,  // of the model: planning, tables, delivery
};
inline constexpr int kOperators = 14;

std::string_view name_of(Operator op);

using StepWork = std::array<kernels::Work, kOperators>;

// What a step reads, writes and computes at least, each byte once an operator: weights and cache in memory, and rows
// between operators. Of experts as many are read as so many rows would choose by chance.
// Counted are the multiplications and additions of products, norms, rope and activations, where an exponential counts
// as one and rounding a number as two; the softmax is not.
StepWork work_of_step(const model::Model& model, const kernels::KernelTable& kernels, const StepBatch& batch,
                      const AttentionGroups& caches);

// Parts of it.
// The keys that window and chunk (0: no such mask) leave to the sequence's rows, all rows together.
double seen_keys(const BatchSequence& sequence, int window, int chunk);
// The same, each key once.
double read_keys(const BatchSequence& sequence, int window, int chunk);
// `rows` rows times the matrix, and added to a residual.
kernels::Work work_of_product(const model::Linear& linear, const kernels::KernelTable& kernels, int rows,
                              bool residual);
kernels::Work work_of_attention(const model::AttentionSpec& spec, DType cache, const kernels::KernelTable& kernels,
                                const StepBatch& batch);

class StepProfile {
 public:
  struct Cost {
    double seconds = 0;
    kernels::Work work = {};
  };

  // The time until now is nobody's.
  void resume() { last_ = Clock::now(); }
  void charge(Operator op) {
    const auto now = Clock::now();
    costs_[static_cast<size_t>(op)].seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  // One more step, that has to do this.
  void count(const StepWork& work);

  int64_t steps() const { return steps_; }
  const Cost& of(Operator op) const { return costs_[static_cast<size_t>(op)]; }
  double seconds() const;  // of all

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = {};
  int64_t steps_ = 0;
  std::array<Cost, kOperators> costs_ = {};
};

}  // namespace quire::exec
