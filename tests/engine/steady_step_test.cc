// Steps in which requests only go on allocate nothing: not on the engine's thread, not on the pool's workers.
//
// Every operator new of this program is counted while a test asks for it, on all threads but the one that waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "quire/engine.h"
#include "support/allocation_count.h"
#include "support/core_harness.h"

namespace quire::test {
namespace {

constexpr int kWarmUp = 20;                       // updates of each request before the count ...
constexpr int kCounted = 100;                     // ... and during it
constexpr int kTokens = kWarmUp + kCounted + 60;  // requests may begin some steps apart

// Every way of choosing a token, in turn.
SamplingParams sampling_of(int kind) {
  SamplingParams p;
  p.temperature = kind == 0 ? 0.0F : 0.9F;
  p.seed = static_cast<uint64_t>(kind);
  if (kind == 2) p.top_k = 20;
  if (kind == 3) p.top_p = 0.9F;
  if (kind == 4) p.min_p = 0.05F;
  if (kind == 5) p.repetition_penalty = 1.1F;
  if (kind == 6) p.frequency_penalty = p.presence_penalty = 0.5F;
  if (kind == 7) p.logit_bias = {{3, 1.0F}, {9, -5.0F}};
  if (kind == 8) p.allowed_token_ids = {2, 3, 5, 7, 11, 13, 17, 19};
  if (kind == 9) p.stop_token_ids = {4, 8};
  p.max_tokens = kTokens;
  p.min_tokens = kind == 9 ? kTokens : 0;
  p.ignore_eos = true;
  return p;
}
constexpr int kKinds = 10;

std::vector<TokenId> prompt_of(int length, int salt) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * 7 + salt * 13 + i * i % 11) % 290);
  return prompt;
}

// Runs the requests together and counts the allocations between two of their steps.
class Counter {
 public:
  explicit Counter(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) { leave_out_this_thread(); }

  int run(std::vector<Request> requests, const Engine::Sink& sink = [](Update&&) {}) {
    stop_count();
    updates_.assign(requests.size(), 0);
    counted_steps_ = 0;
    left_ = requests.size();
    std::vector<Engine::Sink> sinks;
    for (size_t i = 0; i < requests.size(); ++i)
      sinks.emplace_back([this, i, &sink](Update&& update) {
        const FinishReason finish = update.finish;
        count_step(i);
        sink(std::move(update));
        if (finish != FinishReason::kNone) end(finish);
      });
    EXPECT_TRUE(engine_->submit_all(std::move(requests), std::move(sinks)));
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(ended_.wait_for(lock, std::chrono::seconds(120), [&] { return left_ == 0; }));
    EXPECT_EQ(counted_steps_, kCounted + 1);
    return counted_allocations();
  }

  Engine& engine() { return *engine_; }

 private:
  // The first request's updates tell the steps.
  void count_step(size_t i) {
    ++updates_[i];
    if (i == 0) {
      if (counted_steps_ == 0 && std::ranges::min(updates_) >= kWarmUp - 1) start_count();
      if (counting() && ++counted_steps_ > kCounted) stop_count();
    }
  }

  void end(FinishReason finish) {
    EXPECT_EQ(finish, FinishReason::kLength);
    EXPECT_FALSE(counting()) << "nothing ends during the count";
    std::lock_guard lock(mutex_);
    if (--left_ == 0) ended_.notify_one();
  }

  std::vector<int> updates_;
  int counted_steps_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t left_ = 0;
  std::unique_ptr<Engine> engine_;  // its thread uses what stands above
};

EngineOptions options_for(const std::string& model) {
  EngineOptions options;
  options.model = golden_dir() + "/" + model;
  options.kv_cache_bytes = size_t{16} << 20;
  options.block_size = 16;
  options.threads = 2;
  return options;
}

std::unique_ptr<Engine> load(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::vector<Request> requests_of(int count, int first_kind, int length) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i)
    requests.push_back({.prompt = prompt_of(length + 3 * i, i), .sampling = sampling_of((first_kind + i) % kKinds)});
  return requests;
}

class SteadyStep : public testing::TestWithParam<const char*> {};

// Contexts grow over blocks of 16, over a softmax chunk of 256, and past windows.
TEST_P(SteadyStep, OfOneRequestAllocatesNothing) {
  Counter counter(load(options_for(GetParam())));
  for (int kind = 0; kind < kKinds; ++kind)
    EXPECT_EQ(counter.run(requests_of(1, kind, kind % 2 == 0 ? 3 : 180)), 0) << "kind " << kind;
}

TEST_P(SteadyStep, OfManyRequestsAllocatesNothing) {
  for (const int length : {3, 180}) {
    Counter counter(load(options_for(GetParam())));
    EXPECT_EQ(counter.run(requests_of(4, 0, length)), 0) << "prompts of " << length;
    EXPECT_EQ(counter.run(requests_of(16, 0, length)), 0) << "prompts of " << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SteadyStep,
                         testing::Values("llama_untied", "qwen3", "qwen3_moe", "gpt_oss_mxfp4", "gemma3", "qwen3_next",
                                         "glm4_moe_lite", "deepseek_v32", "glm5_next"));

TEST(SteadyStepCache, EvictingOthersPrefixesAllocatesNothing) {
  EngineOptions options = options_for("gemma3");
  options.kv_cache_bytes = size_t{1} << 20;
  Counter counter(load(options));
  const auto evictions = [&] {
    uint64_t sum = 0;
    for (const CacheGroupStats& group : counter.engine().stats().cache_groups) sum += group.evictions;
    return sum;
  };
  for (int round = 0; evictions() == 0 && round < 50; ++round) counter.run(requests_of(1, round, 100 + 11 * round));
  const uint64_t before = evictions();
  EXPECT_GT(before, 0U);
  EXPECT_EQ(counter.run(requests_of(4, 0, 31)), 0);
  EXPECT_GT(evictions(), before);
}

TEST(SteadyStepCache, AnInt8CacheWithoutPrefixesAllocatesNothing) {
  EngineOptions options = options_for("qwen3");
  options.kv_cache_dtype = KvCacheDtype::kInt8;
  options.prefix_caching = false;
  Counter counter(load(options));
  EXPECT_EQ(counter.run(requests_of(4, 0, 180)), 0);
}

TEST(SteadyStepCache, ASaltAllocatesNothing) {
  Counter counter(load(options_for("llama_untied")));
  auto requests = requests_of(4, 0, 3);
  for (Request& request : requests) request.cache_salt = "a salt that is longer than a short string holds";
  EXPECT_EQ(counter.run(std::move(requests)), 0);
}

// The count can fail: a sink that keeps an update's memory makes the next step ask for more.
TEST(SteadyStepCount, SeesWhatASinkTakes) {
  Counter counter(load(options_for("llama_untied")));
  const int allocated =
      counter.run(requests_of(1, 0, 3), [](Update&& update) { const Update taken = std::move(update); });
  EXPECT_EQ(allocated, kCounted);
}

}  // namespace
}  // namespace quire::test
