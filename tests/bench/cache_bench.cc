// Times cache and scheduler without a model: cache_bench [step] [hash] [lookup] [simulator] [million]; all but the last
// without arguments. The cache is that of Gemma-3-270M: 15 window layers and 3 full ones in six groups, one kv head.
//
// Figures are the thread's own time: a median over steps, the best of several rounds, or one whole run.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "cache/planner.h"
#include "engine/batch.h"
#include "sched/simulator.h"

namespace quire {
namespace {

constexpr int64_t kBlock = 32;

double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

cache::CachePlan gemma_plan(int64_t budget_bytes) {
  std::vector<cache::CacheLayer> layers;
  for (int i = 0; i < 18; ++i) {
    cache::CacheSpec spec{.block_size = kBlock, .num_kv_heads = 1, .state_bytes = 2 * 256 * 2};
    if (i % 6 != 5) spec.retention = cache::SlidingWindow{.window = 512};
    layers.push_back({fmt::format("layers.{}", i), spec});
  }
  cache::PlanConfig config;
  config.max_model_len = 32768;
  config.max_in_flight_tokens = 2048;
  config.layout = cache::Layout::kBLHNC;
  config.budget_bytes = budget_bytes;
  return must(cache::plan_cache(layers, config));
}

sched::SimulationConfig gemma_config(int64_t budget_bytes, int64_t max_num_seqs) {
  return {.scheduler = {.max_num_seqs = max_num_seqs},
          .cache = cache::coordinator_config(gemma_plan(budget_bytes), {.max_in_flight_tokens = 2048}, true)};
}

std::vector<TokenId> tokens(uint64_t key, int64_t count) {
  return sched::expand_tokens({sched::Segment{key, count}}, count);
}

// Requests that decode behind a prompt of 1,000 tokens: what the engine does in a step but the forward pass, sampling
// and answers.
void time_step(int64_t requests) {
  const cache::CachePlan plan = gemma_plan(int64_t{8} << 30);
  const auto config = gemma_config(int64_t{8} << 30, requests);
  auto scheduler = must(sched::Scheduler::create(config.scheduler, config.cache));
  auto tables = must(exec::RequestTables::make(plan, requests));
  exec::StepBatch batch;
  std::vector<engine::LogitsUse> uses;
  const std::vector<engine::WantedLogits> wanted(static_cast<size_t>(requests));
  const TokenId token = 7;
  for (uint64_t i = 0; i < static_cast<uint64_t>(requests); ++i)
    if (!scheduler.add({.id = RequestId{i}, .prompt = tokens(i + 1, 1000), .max_tokens = 1 << 20})) std::exit(1);
  std::vector<double> times;
  std::vector<sched::RequestOutput> outputs;
  while (times.size() < 600) {
    const double begin = seconds();
    const sched::StepPlan step = scheduler.schedule(2048);
    engine::build_batch(step, scheduler, wanted, tables, batch, uses);
    outputs.clear();
    for (const auto& planned : step.requests)
      if (planned.samples) outputs.push_back({.id = planned.id, .tokens = {&token, 1}});
    scheduler.apply(step, outputs);
    if (step.total_tokens == requests) times.push_back(1e6 * (seconds() - begin));
  }
  std::ranges::sort(times);
  fmt::print("step of {:3} decodes: {:7.1f} us ({:.1f} at 99 %)\n", requests, times[times.size() / 2],
             times[times.size() * 99 / 100]);
}

void time_hash() {
  const auto ids = tokens(1, 1 << 20);
  const cache::HashScheme scheme{.block_size = kBlock};
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    std::vector<cache::BlockHash> hashes;
    const double begin = seconds();
    cache::extend_hashes(scheme, {}, ids, hashes);
    best = std::min(best, seconds() - begin);
  }
  fmt::print("hashing, blocks of {}: {:.0f} MB/s of token ids\n", kBlock,
             static_cast<double>(ids.size()) * 4e-6 / best);
}

// A prompt of 32k tokens that every group has.
void time_lookup() {
  const auto config = gemma_config(int64_t{4} << 30, 1);
  auto scheduler = must(sched::Scheduler::create(config.scheduler, config.cache));
  const auto prompt = tokens(1, 32000);
  if (!scheduler.add({.id = RequestId{1}, .prompt = prompt, .max_tokens = 1})) std::exit(1);
  const TokenId token = 7;
  while (scheduler.has_work()) {
    const sched::StepPlan step = scheduler.schedule(2048);
    std::vector<sched::RequestOutput> outputs;
    if (step.requests[0].samples) outputs.push_back({.id = RequestId{1}, .tokens = {&token, 1}});
    scheduler.apply(step, outputs);
  }
  std::vector<cache::BlockHash> hashes;
  cache::extend_hashes({.block_size = kBlock}, {}, prompt, hashes);
  double best = 1e9;
  int64_t length = 0;
  for (int round = 0; round < 20; ++round) {
    const double begin = seconds();
    length = scheduler.cache().find_hit(hashes, std::ssize(prompt) - 1).length;
    best = std::min(best, seconds() - begin);
  }
  fmt::print("prefix lookup, hit of {} tokens: {:.0f} us\n", length, 1e6 * best);
}

// Chats: 8 system prompts, a message of 40 to 167 tokens behind it, an answer of 16 to 79.
sched::TraceSource chats(int64_t count) {
  return [count, next = int64_t{0}]() mutable -> Result<std::optional<sched::TraceRequest>> {
    if (next == count) return std::nullopt;
    const auto i = static_cast<uint64_t>(next++);
    const auto varied = static_cast<int64_t>(i * 2654435761U % 128);
    return sched::TraceRequest{.arrival_ns = static_cast<int64_t>(i) * 20'000'000,
                               .prompt = {sched::Segment{1 + i % 8, 256}, sched::Segment{1000 + 2 * i, 40 + varied}},
                               .output = {sched::Segment{1001 + 2 * i, 16 + varied / 2}}};
  };
}

void time_simulator(int64_t requests) {
  auto config = gemma_config(int64_t{1} << 30, 64);
  config.cost = {.step_ns = 5'000'000, .token_ns = 100'000};
  const double begin = seconds();
  const auto report = must(sched::simulate(config, chats(requests)));
  const double taken = seconds() - begin;
  const double planned = report.running.mean() * static_cast<double>(report.running.count());
  fmt::print("simulator, {} requests: {:.1f} s, {} steps of {:.1f} requests, {:.2f} us a request and step\n", requests,
             taken, report.steps, report.running.mean(), 1e6 * taken / planned);
  fmt::print("  {:.1f} % hits, {} preemptions, {} evictions, {:.0f} of {} blocks on average\n", 100 * report.hit_rate(),
             report.preemptions, report.evictions, report.blocks.mean(), report.total_blocks);
}

int run(const std::vector<std::string>& names) {
  const auto wanted = [&](const char* name) {
    return names.empty() ? std::string_view(name) != "million" : std::ranges::find(names, name) != names.end();
  };
  if (wanted("step")) {
    time_step(16);
    time_step(256);
  }
  if (wanted("hash")) time_hash();
  if (wanted("lookup")) time_lookup();
  if (wanted("simulator")) time_simulator(20'000);
  if (wanted("million")) time_simulator(1'000'000);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::run({argv + 1, argv + argc}); }
