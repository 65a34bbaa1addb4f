// The Scheduler decides what each step computes: which requests, how many tokens of each, in which blocks.
//
//   Scheduler scheduler = *Scheduler::create(config, cache);
//   scheduler.add({.id = id, .prompt = ...});
//   plan = scheduler.schedule(budget, now, std::move(plan));
//   ... run the model on the plan ...
//   scheduler.apply(plan, outputs);
//
// One token budget, no phases: running requests come first, in order, then waiting ones. A request that gets no blocks
// makes the last running one (or the least important) give its blocks back; that one is recomputed later and comes
// first among the waiting. In a step that preempted nobody new starts.
//
// schedule() and apply() depend on the calls before them and nothing else: no clock, no randomness. Several plans may
// be in flight (SchedulerConfig::overlapped); outputs are applied in the order of the plans.
//
// Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/coordinator.h"
#include "sched/request.h"
#include "sched/step_budget.h"

namespace quire::sched {

enum class Policy : uint8_t { kFcfs, kPriority };

struct SchedulerConfig {
  int64_t max_num_seqs = 64;
  int64_t long_prefill_threshold = 0;  // most tokens of one request in a step; 0: no limit
  Policy policy = Policy::kFcfs;
  int64_t num_draft_tokens = 0;         // drafts proposed per request and step
  int64_t num_lookahead_tokens = 0;     // slots for a drafter that writes the cache past the last token
  bool overlapped = false;              // a step may be planned before the one before it is applied
  bool reserve_whole_sequence = false;  // admit a request only if all of its tokens fit now
  double watermark = 0.0;               // part of the pool that a request leaves free when it joins others, 0..1
  Sha256Digest hash_root{};             // digest of weights, numeric profile and page layout
  int64_t hash_lookahead = 0;           // tokens that a block's hash covers past its end
};

// One request's part in a step: it computes positions [num_computed, num_computed + num_new). The tokens there are the
// request's own, then its drafts.
struct PlannedRequest {
  RequestId id;
  int64_t num_computed = 0;
  int64_t num_new = 0;
  int64_t num_drafts = 0;   // of num_new, at the end
  bool first = false;       // the first time that it runs, or the first time after a preemption
  bool resumed = false;     // runs again after a preemption
  bool samples = false;     // ends with the last known token: its logits (and those of drafts) are needed
  int64_t num_cached = 0;   // if `first`: tokens taken from the prefix cache, of num_computed
  int32_t first_block = 0;  // its part of StepPlan::block_ids ...
  int32_t first_draft = 0;  // ... and of StepPlan::drafts
};

struct StepPlan {
  std::vector<PlannedRequest> requests;  // in scheduling order: the rows of the batch
  int64_t total_tokens = 0;
  std::vector<RequestId> preempted;
  std::vector<RequestId> finished;  // ended or aborted since the last plan: drop what you hold for them
  std::vector<TokenId> drafts;
  std::vector<cache::BlockCopy> copies;  // run before the forward pass

  // Blocks added to the request's rows: all of them if `first`, null ones included.
  std::span<const BlockId> new_blocks(size_t request, GroupId group) const;
  std::span<const TokenId> drafts_of(size_t request) const;

  std::vector<BlockId> block_ids;   // use new_blocks()
  std::vector<int32_t> block_ends;  // one for each request and group
  int32_t num_groups = 0;
};

// What the model answered for one planned request.
struct RequestOutput {
  RequestId id;
  // Accepted drafts, then one sampled token; empty for a request that does not sample, or has max_tokens of 0.
  std::span<const TokenId> tokens = {};
  bool stopped = false;  // the caller ends it after these tokens
};

struct SchedulerStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;  // without the null block
  double cache_usage = 0.0;
  uint64_t prefix_queries = 0;  // tokens looked up by requests that first ran; what they find after a preemption ...
  uint64_t prefix_hits = 0;     // tokens found              ... is their own, and not counted
  uint64_t preemptions = 0;
  uint64_t evictions = 0;  // published blocks handed out again
};

class Scheduler {
 public:
  // Errors of the cache's configuration, or kInvalidRequest naming the field.
  static Result<Scheduler> create(SchedulerConfig config, cache::CoordinatorConfig cache);

  // kInvalidRequest, naming the field: an empty or too long prompt, an id in use, max_tokens < 0, or a prompt that
  // could not run with the whole pool to itself.
  Result<void> add(RequestInit request);

  // Plans a step within the budget. `now`, in seconds, changes no plan: it only dates what reports tell. `used` is a
  // plan that is done with: its memory becomes the new one's, so that steps in which requests only go on allocate none.
  StepPlan schedule(TokenBudget budget, double now = 0, StepPlan used = {});

  // Takes the outputs of a plan, in the plan's order; requests without output may be left out. To be called once for
  // each plan, in order, after the whole plan has run. Output past max_tokens or the model's length is cut off, and the
  // request ends with that; a request with max_tokens of 0 ends with the plan that reaches its prompt's end. Outputs of
  // requests that are gone are passed over. Returns the requests that ended here (by length or because `stopped`): they
  // are gone, too. The list is valid until the next call.
  const std::vector<RequestId>& apply(const StepPlan& plan, std::span<const RequestOutput> outputs);

  // Drafts to verify in the request's next step. Passed over for a request that is unknown, waits, or has more of its
  // prompt to compute.
  void set_drafts(RequestId id, std::span<const TokenId> drafts);

  // Ends a request, whatever its state. False if it is unknown.
  bool abort(RequestId id);

  // Forgets every cached prefix: for when what a step wrote is not to be trusted.
  void forget_prefixes() { cache_.forget_prefixes(); }
  void subscribe(cache::EventSubscriber subscriber) { cache_.subscribe(std::move(subscriber)); }

  // Null if unknown or ended. Valid until the next call that is not const.
  const RequestState* find(RequestId id) const;
  std::span<const BlockId> block_row(RequestId id, GroupId group) const;
  bool has_work() const { return !requests_.empty(); }
  int64_t num_requests() const { return std::ssize(requests_); }
  // Requests that run and have answered tokens already.
  int64_t num_decoding() const;
  SchedulerStats stats() const;
  std::vector<RequestId> running() const;
  // In the order in which they would start.
  std::vector<RequestId> waiting() const;
  const cache::Coordinator& cache() const { return cache_; }
  const SchedulerConfig& config() const { return config_; }

  // Proves the invariants of cache, queues and requests; kInternal with what is wrong.
  Result<void> integrity() const;

 private:
  Scheduler(SchedulerConfig config, cache::Coordinator cache);

  bool more_important(const RequestState& a, const RequestState& b) const;
  void enqueue(RequestState& request);

  void schedule_running(StepPlan& plan, TokenBudget& budget);
  void schedule_waiting(StepPlan& plan, TokenBudget& budget);
  int64_t running_need(const RequestState& request, TokenBudget budget) const;
  int64_t split_at_checkpoint(const RequestState& request, int64_t start, int64_t num_new) const;
  bool start_waiting(RequestState& request, StepPlan& plan, TokenBudget& budget);
  cache::PrefixHit look_up(RequestState& request);
  void collect_rows(const RequestState& request);
  cache::SlotRequest slots_for(RequestState& request, int64_t num_new);
  int64_t most_tokens(const RequestState& request) const;
  void preempt_one(StepPlan& plan, TokenBudget& budget);
  void add_to_plan(RequestState& request, int64_t num_new, StepPlan& plan, TokenBudget& budget);
  void finish_plan(StepPlan& plan);

  bool apply_one(RequestState& request, const PlannedRequest& planned, const RequestOutput& output);
  void erase(RequestState& request);

  SchedulerConfig config_;
  cache::Coordinator cache_;
  cache::HashScheme hash_scheme_;
  int64_t blocks_to_leave_free_ = 0;
  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<RequestState*> running_;
  std::deque<RequestState*> waiting_;  // in the order in which they start
  std::vector<RequestId> finished_;    // since the last plan
  std::vector<RequestId> ended_;       // by the latest apply()
  uint64_t next_arrival_ = 0;
  int64_t tokens_in_flight_ = 0;
  size_t copies_in_flight_ = 0;
  size_t next_running_ = 0;      // while planning: the next place in running_
  cache::NewBlocks new_blocks_;  // while planning: of one request
  SchedulerStats counters_;
};

}  // namespace quire::sched
