// Everything that serving one model needs, put together: weights, cache plan and memory, kernels, threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "cache/planner.h"
#include "exec/attention_groups.h"
#include "exec/forward.h"
#include "exec/kv_storage.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/load.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "weights/checkpoint.h"

namespace quire::engine {

struct OptionRange {
  int64_t low, high;
};

// What numbers of EngineOptions may be.
inline constexpr OptionRange kModelLengths{1, model::kMaxPositions}, kSequences{1, 4096}, kBatchedTokens{1, 65536},
    kWaitingRequests{1, 1 << 24}, kStepMilliseconds{1, 60000}, kThreads{0, 1024}, kBlockSizes{16, 65536};

struct PlannedCache {
  cache::CachePlan plan;
  std::string notice;  // for people, if a default was lowered; may be empty
};

// The cache that `options` give to layers of a model whose own length is `own_length` tokens. kv_cache_bytes unset:
// half of the memory that would be free after weights of `weight_bytes`. kExhausted if these leave nothing of it.
Result<PlannedCache> plan_for(std::span<const cache::CacheLayer> layers, const EngineOptions& options,
                              int64_t own_length, size_t weight_bytes);

int block_size_of(const EngineOptions& options);  // tokens

// kInvalidRequest if the options ask for a larger cache than memory is free beside weights of `weight_bytes`. Whoever
// plans without running may pass over it.
Result<void> check_memory(const EngineOptions& options, size_t weight_bytes);

// Whether experts go into a file where `available` bytes of memory are free. kUnsupported, naming offload_experts, if
// the model must have some and has none.
Result<bool> offloads_experts(ExpertOffload wanted, const model::WeightMemory& weights, size_t available);

// A checkpoint as the options want it read.
struct OpenedModel {
  weights::Checkpoint checkpoint;  // its tensors quantised where the options say so
  model::ModelSpec spec;
  Profile profile = Profile::kF32;
  size_t file_bytes = 0;                  // of all tensors as they lie in the files
  size_t weight_bytes = 0;                // that they will take in memory, experts in a file not counted
  size_t offloaded_bytes = 0;             // of experts that go into a file
  std::vector<std::string> notices = {};  // for people
};

// kUnsupported names quantization or lm_head_quantization if there is nothing to quantise.
Result<OpenedModel> open_model(const EngineOptions& options);

// What a model would look like in the cache, known before a weight is read: `quire inspect`.
struct Outline {
  model::ModelSpec spec;
  Profile profile = Profile::kF32;
  exec::CacheChoice cache;
  size_t weight_bytes = 0;  // as of OpenedModel
  bool offloads_experts = false;
  std::vector<cache::CacheLayer> layers;
  cache::CachePlan plan;
  std::string notice;  // as of PlannedCache
};

// With the plan of plan_for(), refused if the executor cannot run on it.
Result<Outline> outline_model(const OpenedModel& model, const EngineOptions& options);
// The same for a spec from anywhere, and kernels that take pages of other sizes.
Result<Outline> outline_spec(model::ModelSpec spec, Profile profile, const EngineOptions& options, size_t weight_bytes,
                             exec::PageSizes pages = exec::page_sizes);

// One line a KV cache group: its kind, layers, block and bytes.
std::vector<std::string> describe_groups(const cache::CachePlan& plan);

// The least number of tokens that the prefix cache reuses, and the step in which it reuses more; 0: it reuses nothing.
int64_t minimum_reuse(const cache::CachePlan& plan, bool prefix_caching);

struct LoadedModel {
  Allocator allocator;
  std::unique_ptr<Allocator> expert_memory;  // over a file; null: experts lie with the rest
  std::unique_ptr<ThreadPool> pool;
  kernels::KernelTable kernels;
  model::Model model;
  exec::KvStorage storage;
  exec::AttentionGroups attention;
  std::unique_ptr<exec::Forward> forward;
  ModelInfo info;
  Sha256Digest cache_root = {};  // of weights, profile and page layout: the root of all prefix hashes

  // Runs on the calling thread and the pool's workers; the same thread must run the forward pass later, or none at the
  // same time.
  static Result<std::unique_ptr<LoadedModel>> load(const EngineOptions& options);
  static Result<std::unique_ptr<LoadedModel>> load(const OpenedModel& opened, const EngineOptions& options);
  // With the outline's weights from `tensors`, which need not live on.
  static Result<std::unique_ptr<LoadedModel>> make(Outline outline, const weights::TensorSource& tensors,
                                                   const EngineOptions& options);
};

}  // namespace quire::engine
