#include "sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace quire::sched {
namespace {

constexpr TokenId kUnknownDraft = -1;  // overlapped steps: the draft is not known yet when its place is planned

void clear(StepPlan& plan) {
  plan.requests.clear();
  plan.total_tokens = 0;
  plan.preempted.clear();
  plan.finished.clear();
  plan.drafts.clear();
  plan.copies.clear();
  plan.block_ids.clear();
  plan.block_ends.clear();
}

}  // namespace

std::span<const BlockId> StepPlan::new_blocks(size_t request, GroupId group) const {
  const size_t row = request * static_cast<size_t>(num_groups) + static_cast<size_t>(group.value);
  const int32_t begin = group.value == 0 ? requests[request].first_block : block_ends[row - 1];
  return std::span(block_ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(block_ends[row] - begin));
}

std::span<const TokenId> StepPlan::drafts_of(size_t request) const {
  const auto& planned = requests[request];
  return std::span(drafts).subspan(static_cast<size_t>(planned.first_draft), static_cast<size_t>(planned.num_drafts));
}

Scheduler::Scheduler(SchedulerConfig config, cache::Coordinator cache)
    : config_(config),
      cache_(std::move(cache)),
      hash_scheme_{config.hash_root, cache_.hash_block(), config.hash_lookahead},
      blocks_to_leave_free_(static_cast<int64_t>(config.watermark * static_cast<double>(cache_.pool().total()))) {}

Result<Scheduler> Scheduler::create(SchedulerConfig config, cache::CoordinatorConfig cache) {
  const auto invalid = [](const char* field, auto value, const char* right) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("{} is {}, it must be {}", field, value, right), field);
  };
  if (config.max_num_seqs < 1) return invalid("max_num_seqs", config.max_num_seqs, "at least 1");
  if (config.long_prefill_threshold < 0) {
    return invalid("long_prefill_threshold", config.long_prefill_threshold, "at least 0");
  }
  if (config.num_draft_tokens < 0) return invalid("num_draft_tokens", config.num_draft_tokens, "at least 0");
  if (config.num_lookahead_tokens < 0) {
    return invalid("num_lookahead_tokens", config.num_lookahead_tokens, "at least 0");
  }
  if (config.hash_lookahead < 0) return invalid("hash_lookahead", config.hash_lookahead, "at least 0");
  if (!(config.watermark >= 0.0 && config.watermark < 1.0)) return invalid("watermark", config.watermark, "in [0, 1)");
  cache.lookahead_tokens = config.num_lookahead_tokens;
  cache.overlapped_steps = config.overlapped;
  auto coordinator = cache::Coordinator::create(std::move(cache));
  if (!coordinator) return std::unexpected(coordinator.error());
  return Scheduler(config, std::move(*coordinator));
}

Result<void> Scheduler::add(RequestInit init) {
  const auto invalid = [](std::string message, const char* field) {
    return fail(ErrorKind::kInvalidRequest, std::move(message), field);
  };
  const auto length = static_cast<int64_t>(init.prompt.size());
  if (length == 0) return invalid("the prompt is empty", "prompt");
  if (init.max_tokens < 0)
    return invalid(fmt::format("max_tokens is {}, it must be at least 0", init.max_tokens), "max_tokens");
  const int64_t longest = cache_.max_model_len();
  const int64_t most = longest - std::min<int64_t>(init.max_tokens, 1);
  if (length > most) {
    return invalid(
        fmt::format("the prompt has {} tokens, with the model's length of {} it may have {}", length, longest, most),
        "prompt");
  }
  if (requests_.contains(init.id)) return invalid(fmt::format("request {} exists already", init.id.value), "id");
  const int64_t whole = std::min(longest, init.max_tokens > longest ? longest : length + init.max_tokens);
  const int64_t blocks = cache_.max_blocks_held(whole);
  if (blocks > cache_.pool().total() - 1) {
    return invalid(
        fmt::format("{} tokens need {} blocks of KV cache, it has {}", whole, blocks, cache_.pool().total() - 1),
        "max_tokens");
  }
  auto request = std::make_unique<RequestState>();
  request->tokens = std::move(init.prompt);
  request->num_prompt = length;
  request->arrival = next_arrival_++;
  request->init = std::move(init);
  enqueue(*request);
  const RequestId id = request->init.id;
  requests_.emplace(id, std::move(request));
  return {};
}

bool Scheduler::more_important(const RequestState& a, const RequestState& b) const {
  if (a.init.priority != b.init.priority) return a.init.priority < b.init.priority;
  return a.arrival < b.arrival;
}

// New requests line up; a preempted one comes first. By priority, importance alone decides.
void Scheduler::enqueue(RequestState& request) {
  if (config_.policy == Policy::kPriority) {
    const auto place =
        std::ranges::find_if(waiting_, [&](const auto* other) { return more_important(request, *other); });
    waiting_.insert(place, &request);
  } else if (request.status == RequestStatus::kPreempted) {
    waiting_.push_front(&request);
  } else {
    waiting_.push_back(&request);
  }
}

StepPlan Scheduler::schedule(TokenBudget budget, double now, StepPlan plan) {
  clear(plan);
  plan.num_groups = static_cast<int32_t>(cache_.num_groups());
  plan.requests.reserve(running_.size() + 1);
  const size_t rows = plan.requests.capacity() * static_cast<size_t>(cache_.num_groups());
  plan.block_ends.reserve(rows);
  plan.block_ids.reserve(rows);  // a block in each row, when all of them cross into one
  plan.finished.swap(finished_);
  // The bound that the cache was sized for holds over all steps in flight.
  const int64_t most = cache_.max_in_flight_tokens() - tokens_in_flight_;
  budget.tokens = std::min(budget.tokens, most);
  budget.stretch = std::min(budget.stretch, most - budget.tokens);
  cache_.begin_step(now);
  schedule_running(plan, budget);
  if (plan.preempted.empty()) schedule_waiting(plan, budget);
  finish_plan(plan);
  return plan;
}

// Tokens that a running request can compute in this step; 0 if there is nothing to do for it.
int64_t Scheduler::running_need(const RequestState& request, TokenBudget budget) const {
  // The steps in flight already bring it to max_tokens, even if all of their drafts are rejected.
  if (request.num_placeholders > 0 &&
      request.num_computed + 2 - request.num_placeholders >= request.num_prompt + request.init.max_tokens) {
    return 0;
  }
  int64_t need = request.num_tokens() + static_cast<int64_t>(request.drafts.size()) + request.num_placeholders -
                 request.num_computed;
  if (config_.long_prefill_threshold > 0) need = std::min(need, config_.long_prefill_threshold);
  // The last token of an answer is not computed.
  const int64_t last = cache_.max_model_len() - std::min<int64_t>(request.init.max_tokens, 1);
  need = std::min(budget.fit(need), last - request.num_computed);
  return split_at_checkpoint(request, request.num_computed, need);
}

// Recurrent states are found again only where a step ended at a checkpoint: a step that computes known tokens ends at
// one if it can, and does not pass the last one that a later request may use.
int64_t Scheduler::split_at_checkpoint(const RequestState& request, int64_t start, int64_t num_new) const {
  const int64_t block = cache_.checkpoint_block();
  if (block == 0 || num_new <= 0 || start >= std::max(request.num_prompt, request.num_tokens() - 1)) return num_new;
  const auto last_before = [&](int64_t tokens) { return tokens / block * block; };
  int64_t last = last_before(request.num_tokens());
  if (cache_.drops_last_block()) last -= block;
  const int64_t end = start + num_new;
  const int64_t junction = last_before(request.shared_boundary);
  if (start < junction && junction < end) return junction - start;
  if (end >= last) return start < last ? last - start : num_new;
  return last_before(end) > start ? last_before(end) - start : num_new;
}

void Scheduler::schedule_running(StepPlan& plan, TokenBudget& budget) {
  next_running_ = 0;
  while (next_running_ < running_.size() && budget.tokens > 0) {
    RequestState& request = *running_[next_running_];
    const int64_t num_new = running_need(request, budget);
    if (num_new <= 0) {
      ++next_running_;
      continue;
    }
    bool given = false;
    while (!given && request.status == RequestStatus::kRunning) {
      new_blocks_.ids.clear();
      new_blocks_.ends.clear();
      given = cache_.allocate(request.cache, slots_for(request, num_new), &new_blocks_);
      if (!given) preempt_one(plan, budget);
    }
    if (!given) continue;  // it gave way itself: the next one stands in its place
    add_to_plan(request, num_new, plan, budget);
    ++next_running_;
  }
}

void Scheduler::schedule_waiting(StepPlan& plan, TokenBudget& budget) {
  while (!waiting_.empty() && budget.tokens > 0 && static_cast<int64_t>(running_.size()) < config_.max_num_seqs) {
    RequestState& request = *waiting_.front();
    if (request.num_in_flight > 0) break;  // preempted with a step in flight: its output comes first
    if (!start_waiting(request, plan, budget)) break;
  }
}

cache::PrefixHit Scheduler::look_up(RequestState& request) {
  if (request.init.skip_prefix_lookup || !cache_.caching()) return {};
  cache::extend_hashes(hash_scheme_, request.init.keys, request.tokens, request.hashes);
  // The last token must be computed: its logits are needed.
  cache::PrefixHit hit = cache_.find_hit(request.hashes, request.num_tokens() - 1);
  request.shared_boundary = hit.uncached_common > 0 ? hit.length + hit.uncached_common : 0;
  return hit;
}

bool Scheduler::start_waiting(RequestState& request, StepPlan& plan, TokenBudget& budget) {
  const bool looks_up = !request.init.skip_prefix_lookup && cache_.caching();
  const bool resumed = request.status == RequestStatus::kPreempted;
  const int64_t most = most_tokens(request);
  request.tokens.reserve(static_cast<size_t>(most));
  if (cache_.caching()) request.hashes.reserve(static_cast<size_t>(hash_scheme_.num_blocks(most)));
  cache::PrefixHit hit = look_up(request);
  while (true) {
    int64_t num_new = request.num_tokens() - hit.length;
    if (config_.long_prefill_threshold > 0) num_new = std::min(num_new, config_.long_prefill_threshold);
    num_new = split_at_checkpoint(request, hit.length, budget.fit(num_new));
    auto slots = slots_for(request, num_new);
    slots.hit = looks_up ? &hit : nullptr;
    slots.resumed = resumed;
    if (request.init.explain && !resumed) slots.report = &request.report;
    slots.whole_sequence_must_fit = config_.reserve_whole_sequence;
    if (!plan.requests.empty()) slots.blocks_to_leave_free = blocks_to_leave_free_;
    if (cache_.allocate(request.cache, slots)) {
      collect_rows(request);
      waiting_.pop_front();
      running_.push_back(&request);
      request.status = RequestStatus::kRunning;
      request.num_computed = hit.length;
      if (!request.num_cached) request.num_cached = hit.length;
      if (looks_up && !resumed) {
        counters_.prefix_queries += static_cast<uint64_t>(request.num_tokens());
        counters_.prefix_hits += static_cast<uint64_t>(hit.length);
      }
      add_to_plan(request, num_new, plan, budget);
      plan.requests.back().first = true;
      plan.requests.back().resumed = resumed;
      plan.requests.back().num_cached = hit.length;
      return true;
    }
    // Alone in the pool it must run: a hit may pin more blocks (a copy, or a state that is written in this step) than
    // computing the same tokens anew.
    if (!running_.empty() || hit.length == 0) return false;
    hit = {.rows = std::vector<std::vector<BlockId>>(static_cast<size_t>(cache_.num_groups()))};
  }
}

// All of the request's blocks are new to those who run the plan.
void Scheduler::collect_rows(const RequestState& request) {
  new_blocks_.ids.clear();
  new_blocks_.ends.clear();
  for (int32_t g = 0; g < static_cast<int32_t>(cache_.num_groups()); ++g) {
    const auto row = cache_.row(request.cache, GroupId{g});
    new_blocks_.ids.insert(new_blocks_.ids.end(), row.begin(), row.end());
    new_blocks_.ends.push_back(static_cast<int32_t>(new_blocks_.ids.size()));
  }
}

cache::SlotRequest Scheduler::slots_for(RequestState& request, int64_t num_new) {
  if (cache_.caching()) {
    cache::extend_hashes(hash_scheme_, request.init.keys, request.tokens, request.hashes);
  }
  return {.tokens = {.hashes = request.hashes,
                     .tokens = request.tokens,
                     .keys = &request.init.keys,
                     .num_prompt_tokens = request.num_prompt,
                     .shared_boundary = request.shared_boundary},
          .computed = request.num_computed,
          .in_flight = request.num_in_flight,
          .new_tokens = num_new,
          .lookahead = config_.num_lookahead_tokens,
          .most_tokens = most_tokens(request)};
}

// The longest that the request may become.
int64_t Scheduler::most_tokens(const RequestState& request) const {
  const int64_t longest = cache_.max_model_len();
  return std::min(longest, request.num_prompt + std::min(longest, request.init.max_tokens));
}

// Takes its blocks from the last running request, or from the least important one. That one may already be part of
// this plan: then it leaves it, and what it published for this step is void.
void Scheduler::preempt_one(StepPlan& plan, TokenBudget& budget) {
  size_t place = running_.size() - 1;
  if (config_.policy == Policy::kPriority) {
    const auto least = std::ranges::max_element(
        running_, [&](const RequestState* a, const RequestState* b) { return more_important(*a, *b); });
    place = static_cast<size_t>(least - running_.begin());
  }
  RequestState& victim = *running_[place];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(place));
  if (place < next_running_) {
    --next_running_;
    const auto planned = std::ranges::find(plan.requests, victim.init.id, &PlannedRequest::id);
    if (planned != plan.requests.end()) {
      budget.tokens += planned->num_new;
      const auto row = (planned - plan.requests.begin()) * plan.num_groups;
      plan.block_ends.erase(plan.block_ends.begin() + row, plan.block_ends.begin() + row + plan.num_groups);
      plan.requests.erase(planned);
    }
  }
  cache_.release(victim.cache, victim.num_computed);
  victim.status = RequestStatus::kPreempted;
  victim.num_computed = 0;
  victim.drafts.clear();
  victim.samples = false;
  ++victim.num_preemptions;
  ++counters_.preemptions;
  plan.preempted.push_back(victim.init.id);
  enqueue(victim);
}

void Scheduler::add_to_plan(RequestState& request, int64_t num_new, StepPlan& plan, TokenBudget& budget) {
  PlannedRequest planned{.id = request.init.id,
                         .num_computed = request.num_computed,
                         .num_new = num_new,
                         .first_block = static_cast<int32_t>(plan.block_ids.size()),
                         .first_draft = static_cast<int32_t>(plan.drafts.size())};
  const int64_t past_known = request.num_computed + num_new - request.num_tokens() - request.num_placeholders;
  planned.num_drafts = std::clamp<int64_t>(past_known, 0, static_cast<int64_t>(request.drafts.size()));
  plan.drafts.insert(plan.drafts.end(), request.drafts.begin(), request.drafts.begin() + planned.num_drafts);
  request.drafts.clear();
  for (const int32_t end : new_blocks_.ends) plan.block_ends.push_back(planned.first_block + end);
  plan.block_ids.insert(plan.block_ids.end(), new_blocks_.ids.begin(), new_blocks_.ids.end());
  plan.requests.push_back(planned);
  budget.tokens -= num_new;
}

// What is planned counts as computed, so that the next step may be planned at once.
void Scheduler::finish_plan(StepPlan& plan) {
  for (auto& planned : plan.requests) {
    RequestState& request = *requests_.at(planned.id);
    request.num_computed += planned.num_new;
    request.num_in_flight += planned.num_new;
    tokens_in_flight_ += planned.num_new;
    plan.total_tokens += planned.num_new;
    planned.samples = request.num_computed >= request.num_tokens() + request.num_placeholders;
    request.samples = planned.samples;
    if (!config_.overlapped || !planned.samples || request.init.max_tokens == 0) continue;
    request.num_placeholders += 1 + planned.num_drafts;
    request.drafts.assign(static_cast<size_t>(config_.num_draft_tokens), kUnknownDraft);
  }
  const auto copies = cache_.pending_copies().subspan(copies_in_flight_);
  plan.copies.assign(copies.begin(), copies.end());
  copies_in_flight_ += copies.size();
}

const std::vector<RequestId>& Scheduler::apply(const StepPlan& plan, std::span<const RequestOutput> outputs) {
  ended_.clear();
  size_t next = 0;
  for (const auto& planned : plan.requests) {
    RequestOutput output{.id = planned.id};
    if (next < outputs.size() && outputs[next].id == planned.id) output = outputs[next++];
    const auto found = requests_.find(planned.id);
    if (found == requests_.end()) continue;
    RequestState& request = *found->second;
    if (!apply_one(request, planned, output)) continue;
    ended_.push_back(planned.id);
    erase(request);
  }
  QUIRE_CHECK(next == outputs.size());  // in the plan's order
  cache_.copies_done(plan.copies.size());
  copies_in_flight_ -= plan.copies.size();
  return ended_;
}

// True if the request ended.
bool Scheduler::apply_one(RequestState& request, const PlannedRequest& planned, const RequestOutput& output) {
  request.num_in_flight -= planned.num_new;
  tokens_in_flight_ -= planned.num_new;
  if (request.init.max_tokens == 0) return output.stopped || planned.samples;
  if (output.tokens.empty()) return output.stopped;

  const auto num_output = static_cast<int64_t>(output.tokens.size());
  QUIRE_CHECK(planned.samples && num_output <= planned.num_drafts + 1);
  const int64_t rejected = planned.num_drafts + 1 - num_output;
  const bool running = request.status == RequestStatus::kRunning;
  if (running) request.num_computed -= rejected;  // the rejected drafts' blocks stay
  request.num_placeholders -= config_.overlapped ? planned.num_drafts + 1 : 0;

  bool ended = false;
  for (const TokenId token : output.tokens) {
    request.tokens.push_back(token);
    ended = request.num_output() >= request.init.max_tokens || request.num_tokens() >= cache_.max_model_len();
    if (ended) break;
  }
  if (config_.overlapped && running) {
    const auto slots = slots_for(request, 0);
    cache_.publish(request.cache, slots.tokens,
                   std::min(request.num_computed - request.num_placeholders, request.num_tokens()));
  }
  return ended || output.stopped;
}

void Scheduler::set_drafts(RequestId id, std::span<const TokenId> drafts) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->status != RequestStatus::kRunning || !found->second->samples) return;
  found->second->drafts.assign(drafts.begin(), drafts.end());
}

bool Scheduler::abort(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  erase(*found->second);
  return true;
}

void Scheduler::erase(RequestState& request) {
  cache_.release(request.cache, request.num_computed);
  std::erase(running_, &request);
  std::erase(waiting_, &request);
  tokens_in_flight_ -= request.num_in_flight;
  finished_.push_back(request.init.id);
  requests_.erase(request.init.id);
}

const RequestState* Scheduler::find(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

std::span<const BlockId> Scheduler::block_row(RequestId id, GroupId group) const {
  const auto* request = find(id);
  if (request == nullptr) return {};
  return cache_.row(request->cache, group);
}

int64_t Scheduler::num_decoding() const {
  return std::ranges::count_if(running_, [](const RequestState* request) { return request->num_output() > 0; });
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.free_blocks = cache_.pool().free_count();
  stats.total_blocks = cache_.pool().total() - 1;
  stats.cache_usage = cache_.pool().usage();
  stats.evictions = static_cast<uint64_t>(cache_.pool().evictions());
  return stats;
}

std::vector<RequestId> Scheduler::running() const {
  std::vector<RequestId> ids;
  for (const auto* request : running_) ids.push_back(request->init.id);
  return ids;
}

std::vector<RequestId> Scheduler::waiting() const {
  std::vector<RequestId> ids;
  for (const auto* request : waiting_) ids.push_back(request->init.id);
  return ids;
}

Result<void> Scheduler::integrity() const {
  const auto broken = [](RequestId id, std::string_view what) {
    return fail(ErrorKind::kInternal, fmt::format("scheduler: request {} {}", id.value, what));
  };
  if (running_.size() + waiting_.size() != requests_.size()) {
    return fail(ErrorKind::kInternal, fmt::format("scheduler: {} running and {} waiting of {} requests",
                                                  running_.size(), waiting_.size(), requests_.size()));
  }
  if (static_cast<int64_t>(running_.size()) > config_.max_num_seqs) {
    return fail(ErrorKind::kInternal,
                fmt::format("scheduler: {} requests run, the limit is {}", running_.size(), config_.max_num_seqs));
  }
  for (const auto* request : running_) {
    if (request->status != RequestStatus::kRunning) return broken(request->init.id, "runs without that status");
    if (!request->cache.admitted()) return broken(request->init.id, "runs without cache");
  }
  for (const auto* request : waiting_) {
    if (request->status == RequestStatus::kRunning) return broken(request->init.id, "waits with the status of running");
    if (request->cache.admitted() || request->num_computed != 0)
      return broken(request->init.id, "waits, yet holds cache");
  }
  std::vector<const cache::RequestCache*> caches;
  int64_t in_flight = 0;
  for (const auto& [id, request] : requests_) {
    if (request->num_in_flight > request->num_computed && request->status == RequestStatus::kRunning) {
      return broken(id, "has more tokens in flight than computed");
    }
    if (request->num_computed > request->num_tokens() + request->num_placeholders + config_.num_draft_tokens) {
      return broken(id, "has computed more tokens than it has");
    }
    in_flight += request->num_in_flight;
    caches.push_back(&request->cache);
  }
  if (in_flight != tokens_in_flight_) {
    return fail(ErrorKind::kInternal,
                fmt::format("scheduler: {} tokens in flight, {} counted", in_flight, tokens_in_flight_));
  }
  return cache_.integrity(caches);
}

}  // namespace quire::sched
