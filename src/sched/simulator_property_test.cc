// Random traces through the simulator, in pools down to the smallest that admits one request.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "sched/simulator.h"
#include "sched/test_specs.h"

namespace quire::sched {
namespace {

using cache::CacheSpec;

enum class Room { kTight, kAmple };

struct World {
  SimulationConfig config;
  int64_t unit = 0;  // hits are multiples of it
};

World random_world(bool sparse, Room room) {
  World world;
  SimulationConfig& config = world.config;
  config.cache.max_model_len = *rc::gen::inRange<int64_t>(8, 60);
  const int groups = *rc::gen::inRange(1, 4);
  for (int g = 0; g < groups; ++g) {
    const CacheSpec spec =
        sparse ? random_spec() : CacheSpec{.block_size = *rc::gen::element(2, 4, 8), .state_bytes = 16};
    config.cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
  }
  config.step_seconds = *rc::gen::element(1e-9, 1e-7, 1e6);
  config.max_tokens = *rc::gen::inRange<int64_t>(1, 60);
  config.max_waiting = *rc::gen::inRange<int64_t>(1, 6);
  config.cost = {.step_ns = *rc::gen::inRange<int64_t>(0, 100), .token_ns = *rc::gen::inRange<int64_t>(0, 10)};
  config.check_integrity = true;
  config.scheduler.max_num_seqs = *rc::gen::inRange<int64_t>(1, 5);
  config.scheduler.long_prefill_threshold = *rc::gen::element<int64_t>(0, 0, 3, 9);
  config.scheduler.policy = *rc::gen::element(Policy::kFcfs, Policy::kPriority);
  config.scheduler.reserve_whole_sequence = *rc::gen::inRange(0, 4) == 0;
  config.scheduler.watermark = *rc::gen::element(0.0, 0.0, 0.1);
  config.cache.limits.max_in_flight_tokens = config.max_tokens;
  config.cache.num_blocks = 100;
  const auto probe = cache::Coordinator::create(config.cache);
  RC_PRE(probe.has_value());
  const int64_t smallest = 1 + probe->max_blocks_held(config.cache.max_model_len);
  config.cache.num_blocks =
      room == Room::kTight ? smallest + *rc::gen::inRange(0, 8) : 3000;  // more than all requests fill
  world.unit = probe->hit_alignment();
  using Keep = cache::RetentionPolicy::Keep;
  if (room == Room::kTight)
    config.cache.retention.keep = *rc::gen::element(Keep::kEveryBoundary, Keep::kKnownReuse, Keep::kTurnEnds);
  return world;
}

// Few streams of tokens, so that prompts share beginnings; answers return in later prompts.
std::vector<TraceRequest> random_trace() {
  std::vector<TraceRequest> trace;
  const auto count = *rc::gen::inRange<uint64_t>(1, 25);
  int64_t now = 0;
  for (uint64_t i = 0; i < count; ++i) {
    now += *rc::gen::inRange<int64_t>(0, 300);
    TraceRequest request{.arrival_ns = now, .prompt = {}, .output = {}};
    for (int pieces = *rc::gen::inRange(1, 4); pieces > 0; --pieces)
      request.prompt.emplace_back(Segment{*rc::gen::inRange<uint64_t>(0, 3), *rc::gen::inRange<int64_t>(1, 24)});
    if (i > 0 && *rc::gen::inRange(0, 3) == 0) {  // the next turn of an earlier one
      const TraceRequest& before = trace[*rc::gen::inRange<size_t>(0, trace.size())];
      request.prompt = before.prompt;
      request.prompt.insert(request.prompt.end(), before.output.begin(), before.output.end());
      request.prompt.emplace_back(Segment{*rc::gen::inRange<uint64_t>(0, 3), *rc::gen::inRange<int64_t>(1, 12)});
      request.cache_salt = before.cache_salt;
    } else {
      request.cache_salt = *rc::gen::element<std::string>("", "", "a");
    }
    request.output = {Segment{10 + i, *rc::gen::inRange<int64_t>(1, 16)}};
    request.priority = *rc::gen::inRange(0, 3);
    trace.push_back(std::move(request));
  }
  return trace;
}

struct Played {
  SimulationReport report;
  std::vector<RequestOutcome> outcomes;  // in the order in which they ended
};

Played play(const World& world, const std::vector<TraceRequest>& trace) {
  Played played;
  size_t next = 0;
  const auto source = [&]() -> Result<std::optional<TraceRequest>> {
    if (next == trace.size()) return std::nullopt;
    return trace[next++];
  };
  auto report =
      simulate(world.config, source, [&](const RequestOutcome& outcome) { played.outcomes.push_back(outcome); });
  if (!report) RC_FAIL(report.error().message);
  played.report = *report;
  return played;
}

std::vector<TokenId> all_tokens(const TraceRequest& request) {
  std::vector<TokenId> tokens = expand_tokens(request.prompt, 1 << 20);
  const auto output = expand_tokens(request.output, 1 << 20);
  tokens.insert(tokens.end(), output.begin(), output.end());
  return tokens;
}

// Tokens at the beginning of `prompt` that `other` computed, too: its last answered token it did not.
int64_t common_prefix(const TraceRequest& request, const TraceRequest& other) {
  if (request.cache_salt != other.cache_salt) return 0;
  const auto prompt = expand_tokens(request.prompt, 1 << 20);
  const auto theirs = all_tokens(other);
  const auto differ = std::mismatch(prompt.begin(), prompt.end(), theirs.begin(), theirs.end() - 1);
  return differ.first - prompt.begin();
}

void check_totals(const Played& played, const std::vector<TraceRequest>& trace, int64_t max_model_len) {
  const SimulationReport& report = played.report;
  RC_ASSERT(played.outcomes.size() == trace.size());
  RC_ASSERT(report.requests == static_cast<int64_t>(trace.size()));
  std::vector<bool> seen(trace.size(), false);
  int64_t prompt = 0, cached = 0, output = 0, preempted = 0, refused = 0;
  for (const RequestOutcome& outcome : played.outcomes) {
    RC_ASSERT(!seen[outcome.index]);
    seen[outcome.index] = true;
    if (outcome.refused) {
      ++refused;
      continue;
    }
    const TraceRequest& request = trace[outcome.index];
    RC_ASSERT(outcome.prompt_tokens == count_tokens(request.prompt));
    RC_ASSERT(outcome.output_tokens == std::min(count_tokens(request.output), max_model_len - outcome.prompt_tokens));
    RC_ASSERT(outcome.waited_ns >= 0 && outcome.waited_steps >= 0);
    RC_ASSERT(outcome.first_token_ns >= outcome.waited_ns && outcome.total_ns >= outcome.first_token_ns);
    prompt += outcome.prompt_tokens;
    cached += outcome.cached_tokens;
    output += outcome.output_tokens;
    preempted += outcome.preemptions;
  }
  RC_ASSERT(report.refused == refused);
  RC_ASSERT(report.prompt_tokens == prompt && report.cached_tokens == cached && report.output_tokens == output);
  RC_ASSERT(report.preemptions == preempted);
  // Every token but the cached ones and the last of each answer is computed once. Who was preempted computes some
  // again, or finds what others computed in the meantime.
  if (preempted == 0) RC_ASSERT(report.computed_tokens == prompt - cached + output - (report.requests - refused));
  RC_ASSERT(report.steps == report.running.count());
  RC_ASSERT(report.blocks.max() <= report.total_blocks);
  int64_t evictions = 0;
  double held = 0;
  for (const SimulatedGroup& group : report.groups) {
    evictions += group.evictions;
    held += group.held.mean();
  }
  RC_ASSERT(evictions == report.evictions);
  RC_ASSERT(std::abs(held - report.blocks.mean()) < 1e-6);
}

// The simulator itself proves that all blocks are free at the end, and calls integrity() after every step.
TEST(SimulatorProperties, EveryRequestEndsInThePoolThatAdmitsOne) {
  EXPECT_TRUE(rc::check([] {
    const World world = random_world(true, Room::kTight);
    const auto trace = random_trace();
    const Played played = play(world, trace);
    check_totals(played, trace, world.config.cache.max_model_len);
    for (const RequestOutcome& outcome : played.outcomes) {
      if (outcome.refused) RC_ASSERT(outcome.refused->param == "prompt" || outcome.refused->param == "max_tokens");
    }
  }));
}

TEST(SimulatorProperties, TheReportIsAFunctionOfTheTrace) {
  EXPECT_TRUE(rc::check([] {
    const World world = random_world(true, Room::kTight);
    const auto trace = random_trace();
    const Played first = play(world, trace);
    const Played second = play(world, trace);
    RC_ASSERT(first.report.steps == second.report.steps);
    RC_ASSERT(first.report.duration_ns == second.report.duration_ns);
    for (size_t i = 0; i < trace.size(); ++i) {
      RC_ASSERT(first.outcomes[i].index == second.outcomes[i].index);
      RC_ASSERT(first.outcomes[i].cached_tokens == second.outcomes[i].cached_tokens);
      RC_ASSERT(first.outcomes[i].total_ns == second.outcomes[i].total_ns);
    }
  }));
}

// What a request may find at most: the beginning that it shares with any request that did not start after it.
TEST(SimulatorProperties, NoHitIsLongerThanWhatOthersComputed) {
  EXPECT_TRUE(rc::check([] {
    const World world = random_world(true, Room::kTight);
    // Where all layers see their own chunk alone, a prefix of whole chunks is "found" though nobody computed it.
    RC_PRE(std::ranges::any_of(world.config.cache.groups, [](const cache::GroupConfig& group) {
      return !cache::keeps<cache::ChunkedLocal>(group.spec) && !cache::keeps<cache::CircularBuffer>(group.spec);
    }));
    const auto trace = random_trace();
    const Played played = play(world, trace);
    const auto start_of = [&](const RequestOutcome& outcome) {
      return trace[outcome.index].arrival_ns + outcome.waited_ns;
    };
    for (const RequestOutcome& outcome : played.outcomes) {
      int64_t longest = 0;
      for (const RequestOutcome& other : played.outcomes) {
        if (other.refused || other.index == outcome.index || start_of(other) > start_of(outcome)) continue;
        longest = std::max(longest, common_prefix(trace[outcome.index], trace[other.index]));
      }
      longest = std::min(longest, outcome.prompt_tokens - 1);
      RC_ASSERT(outcome.cached_tokens <= longest / world.unit * world.unit);
    }
  }));
}

// Where nothing is ever evicted, full layers find all of what an ended request left behind.
TEST(SimulatorProperties, InAnAmplePoolEveryWholeUnitIsFound) {
  EXPECT_TRUE(rc::check([] {
    const World world = random_world(false, Room::kAmple);
    const auto trace = random_trace();
    const Played played = play(world, trace);
    RC_ASSERT(played.report.evictions == 0 && played.report.preemptions == 0);
    for (const RequestOutcome& outcome : played.outcomes) {
      if (outcome.refused) continue;
      const int64_t start = trace[outcome.index].arrival_ns + outcome.waited_ns;
      int64_t longest = 0;
      for (const RequestOutcome& other : played.outcomes) {
        if (&other == &outcome) break;  // in the order in which they ended
        if (other.refused || trace[other.index].arrival_ns + other.total_ns > start) continue;
        longest = std::max(longest, common_prefix(trace[outcome.index], trace[other.index]));
      }
      longest = std::min(longest, outcome.prompt_tokens - 1);
      RC_ASSERT(outcome.cached_tokens >= longest / world.unit * world.unit);
    }
  }));
}

}  // namespace
}  // namespace quire::sched
