// The simulator replays requests against the real scheduler and cache, without a model: configuration and requests in,
// a report out. What it says of hits, preemptions and blocks is what the engine would do in steps of the same tokens;
// the StepBudget is the engine's, too.
//
// Time is counted, not measured: a step takes StepCost::step_ns and StepCost::token_ns for each of its tokens; a
// request joins before the first step that begins at or after its arrival. So a report depends on its input alone.
// Answers are part of the requests. Where the trace names no tokens, a Segment makes them up: equal keys give equal
// tokens, which is how requests share prefixes.
//
// Memory is bounded by the requests that run and wait: at most `max_waiting` wait in the queue, the others stay in
// their source until there is room. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sched/scheduler.h"

namespace quire::sched {

// `count` made-up tokens, determined by `key`: of two segments with one key the shorter is a prefix of the longer.
struct Segment {
  uint64_t key = 0;
  int64_t count = 0;
};

using TokenPiece = std::variant<std::vector<TokenId>, Segment>;

struct TraceRequest {
  int64_t arrival_ns = 0;  // not before that of the request before it
  std::vector<TokenPiece> prompt;
  std::vector<TokenPiece> output;  // the answer; the request ends with its last token
  std::string cache_salt = {};
  int priority = 0;
};

int64_t count_tokens(const std::vector<TokenPiece>& pieces);
// The first `limit` tokens at most.
std::vector<TokenId> expand_tokens(const std::vector<TokenPiece>& pieces, int64_t limit);

// The next request, nullopt after the last one, or an error that ends the simulation.
using TraceSource = std::function<Result<std::optional<TraceRequest>>()>;

// Blocks and other things that are counted are at most so many; the time of a token or a step is at most so long.
inline constexpr int64_t kMostSimulated = int64_t{1} << 24;
inline constexpr int64_t kMostCostNs = 10'000'000'000;

struct StepCost {
  int64_t step_ns = 9'000'000;
  int64_t token_ns = 1'000'000;
};

struct SimulationConfig {
  SchedulerConfig scheduler;  // one step at a time, without drafts
  cache::CoordinatorConfig cache;
  double step_seconds = 0.1;  // aim of the StepBudget
  int64_t max_tokens = 2048;  // of a step
  int64_t max_waiting = 1024;
  StepCost cost = {};
  bool check_integrity = false;  // after every step; slow
};

// What became of one request.
struct RequestOutcome {
  uint64_t index = 0;  // in the trace, from 0
  // Why the scheduler did not take it: it could never run. All below is 0 then.
  std::optional<Error> refused = {};
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache when it first ran
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  int64_t waited_steps = 0;    // between joining the queue and its first step
  int64_t waited_ns = 0;       // from its arrival to the beginning of its first step
  int64_t first_token_ns = 0;  // from its arrival to the end of the step that gave its first token
  int64_t total_ns = 0;        // from its arrival to the end of its last step
};

// Counts of values >= 0 in buckets: exact below 64, else within 1/32. Mean and largest are exact.
class Distribution {
 public:
  void add(int64_t value);
  int64_t count() const { return count_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  int64_t max() const { return max_; }
  // The smallest bucket's lower end that `part` (0..1) of the values lie in or below.
  int64_t quantile(double part) const;

 private:
  std::array<int64_t, 59 * 32> buckets_ = {};
  int64_t count_ = 0;
  int64_t max_ = 0;
  double sum_ = 0;
};

struct SimulatedGroup {
  Distribution held;       // blocks, after a step is planned
  int64_t hit_tokens = 0;  // in the blocks that requests took over from the prefix cache
  int64_t evictions = 0;
};

struct SimulationReport {
  int64_t requests = 0;  // finished and refused
  int64_t refused = 0;
  std::string first_refusal = {};
  int64_t held_back = 0;  // joined later than they arrived, for the queue was full
  int64_t steps = 0;
  int64_t duration_ns = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of prompt_tokens
  int64_t output_tokens = 0;
  int64_t computed_tokens = 0;  // by all steps: what preemption computes again is in it
  int64_t preemptions = 0;
  int64_t evictions = 0;  // cached blocks that were given to others
  int64_t total_blocks = 0;
  Distribution running;  // requests in a step
  Distribution blocks;   // held after a step is planned
  std::vector<SimulatedGroup> groups;
  Distribution waited_steps;
  Distribution waited_ns;
  Distribution first_token_ns;

  double hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
  }
};

// `observe` (if given) gets the outcome of every request, as it ends.
// Errors: of the configuration; of the source; kInvalidRequest, naming the request, if arrivals go backwards or an
// answer is empty, and naming `cost` if the simulated time grows too long; kInternal if an invariant is broken.
Result<SimulationReport> simulate(const SimulationConfig& config, const TraceSource& source,
                                  const std::function<void(const RequestOutcome&)>& observe = {});

}  // namespace quire::sched
