// An Engine serves one model: it takes requests, runs them together in steps, and streams their tokens.
//
//   auto engine = quire::Engine::load({.model = "model.gguf"});
//   (*engine)->submit({.prompt = {1, 2, 3}}, [](quire::Update&& update) { ... });
//
// All functions may be called from any thread. Updates of one request come in order, on the engine's own thread: a
// sink must return quickly and must not call the engine. It may move out of its update what it wants; the memory that
// it leaves serves the next step. Destroying the engine ends what still runs with kAborted.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/request.h"

namespace quire {

enum class Profile : uint8_t { kF32, kBF16, kQ8 };  // docs/determinism.md

constexpr std::string_view name_of(Profile profile) {
  switch (profile) {
    case Profile::kF32:
      return "f32";
    case Profile::kBF16:
      return "bf16";
    case Profile::kQ8:
      return "q8";
  }
  return "?";
}

// What keys and values are kept in. kAuto: fp32 in the profile f32, bf16 in the others.
enum class KvCacheDtype : uint8_t { kAuto, kBFloat16, kInt8 };

// Online quantisation: what the matrices of a checkpoint that are floats in its file are rounded to while loading.
enum class Quantization : uint8_t { kNone, kInt8, kInt4 };

// The same for the LM head alone. kAuto: int8 where `quantization` is not kNone.
enum class LmHeadQuantization : uint8_t { kAuto, kNone, kInt8 };

// Where the matrices of experts lie. kAuto: in memory if all weights fit, else in a file, of which the system keeps in
// memory what is used.
enum class ExpertOffload : uint8_t { kAuto, kNever, kAlways };

constexpr std::string_view name_of(Quantization quantization) {
  return quantization == Quantization::kInt8 ? "int8" : quantization == Quantization::kInt4 ? "int4" : "none";
}

constexpr std::string_view name_of(LmHeadQuantization quantization) {
  return quantization == LmHeadQuantization::kInt8   ? "int8"
         : quantization == LmHeadQuantization::kNone ? "none"
                                                     : "auto";
}

struct EngineOptions {
  std::filesystem::path model = {};           // a folder in Hugging Face format or a .gguf file
  std::filesystem::path hf_config_path = {};  // instead of the folder's config.json: a file, or a folder with one
  std::string hf_overrides = {};              // a JSON object that is merged into the configuration
  std::optional<Profile> profile = {};        // default: by the checkpoint and `quantization`
  Quantization quantization = Quantization::kNone;
  LmHeadQuantization lm_head_quantization = LmHeadQuantization::kAuto;
  ExpertOffload expert_offload = ExpertOffload::kAuto;
  std::filesystem::path offload_dir = {};     // for that file; empty: TMPDIR, or /var/tmp without it
  std::optional<int64_t> max_model_len = {};  // tokens; default: the model's, lowered to what fits; given: must fit
  std::optional<size_t> kv_cache_bytes = {};  // default: half of the memory free after weights
  KvCacheDtype kv_cache_dtype = KvCacheDtype::kAuto;
  std::optional<int> block_size = {};  // tokens of a manager block; default 32
  std::string kv_cache_layout = {};    // one of the six physical orders; empty: the default
  bool prefix_caching = true;
  bool hybrid_kv_cache = true;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 2048;  // cap of the step's token budget
  int max_waiting_requests = 1024;
  bool priority_scheduling = false;          // Request::priority decides who runs, and who is preempted
  std::chrono::milliseconds step_time{100};  // aim for a step while others decode
  int threads = 0;                           // 0: physical cores allowed, or one for each CPU of a list in cpu_affinity
  std::string cpu_affinity = {};             // "auto", or a list of CPUs ("0-3,8") for the threads; empty: not pinned
  bool check_integrity = false;              // walk the cache after every step
  // Loading progress from 0 to 1, on the calling thread.
  std::function<void(double)> progress = {};
};

// What is known of the model once loaded; immutable.
struct ModelInfo {
  std::string architecture;
  Profile profile;
  int64_t vocab_size;
  int64_t hidden_size;
  int64_t max_model_len;  // tokens, prompt and answer
  std::vector<TokenId> end_tokens;
  std::string fingerprint;  // weights, profile, cache and contract: equal fingerprints give equal bits
  std::string isa;          // instruction set and its extensions, for example "avx512+amx_bf16+amx_int8"
  int threads;
  size_t weight_bytes;
  size_t kv_cache_bytes;
  int64_t kv_cache_tokens;  // tokens of one longest request that fit, times requests that fit
  int num_gpu_blocks;       // blocks in the pool, named as vLLM's metric names it
  int block_size;
  int64_t minimum_reuse_tokens;           // the least that is taken from the prefix cache, and its step; 0: nothing is
  std::vector<std::string> cache_groups;  // one line a KV cache group, for people
};

// Bounds of EngineStats::steps_by_tokens.
inline constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};

// Of one KV cache group.
struct CacheGroupStats {
  std::string_view kind = {};   // of its layers: "full", "sliding window", ...; points to a literal
  int64_t held_blocks = 0;      // by requests
  int64_t retained_blocks = 0;  // with a prefix that can be found, and held by nobody
  uint64_t evictions = 0;       // blocks whose prefix gave way to other blocks
  uint64_t hit_tokens = 0;      // in the blocks that requests took over from the prefix cache
};

// Counts since the start, and gauges of now.
struct EngineStats {
  int running = 0;
  int waiting = 0;
  double kv_cache_usage = 0;  // 0..1 of the pool's blocks
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;
  uint64_t prefix_cache_queries = 0;  // tokens
  uint64_t prefix_cache_hits = 0;     // tokens
  std::vector<CacheGroupStats> cache_groups = {};
  uint64_t preemptions = 0;
  uint64_t prompt_tokens = 0;
  uint64_t prompt_tokens_cached = 0;
  uint64_t generation_tokens = 0;
  uint64_t finished_stop = 0;
  uint64_t finished_length = 0;
  uint64_t finished_abort = 0;
  uint64_t finished_error = 0;
  uint64_t steps = 0;
  uint64_t step_tokens = 0;  // tokens that the steps computed, of prompts and answers
  // Steps by their tokens: more than the bound before and up to the bound in the same place; the last: beyond all.
  std::array<uint64_t, kStepTokenBounds.size() + 1> steps_by_tokens = {};
  double step_seconds = 0;      // all of the steps' time
  double overhead_seconds = 0;  // the part outside forward pass and sampling
};

class Engine {
 public:
  using Sink = std::function<void(Update&&)>;

  // Computes on the calling thread too, and leaves it with flush-to-zero and denormals-are-zero set.
  static Result<std::unique_ptr<Engine>> load(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request and returns its id. kInvalidRequest with the field's name if it can never run (empty prompt, ids
  // outside the vocabulary, too long, parameters out of range); kExhausted if the waiting queue is full.
  Result<uint64_t> submit(Request request, Sink sink);
  // As submit, all or none: the answers of one request with n > 1, or several prompts.
  Result<std::vector<uint64_t>> submit_all(std::vector<Request> requests, std::vector<Sink> sinks);
  // Ends a request within one step; its sink gets kAborted. Unknown or finished ids are ignored.
  void cancel(uint64_t id);

  const ModelInfo& info() const;
  EngineStats stats() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
