#include "sched/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace quire::sched {
namespace {

constexpr int64_t kLongest = int64_t{100} * 365 * 24 * 3600 * 1'000'000'000;

// splitmix64: a bijection, so tokens of one segment differ by more than chance.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

size_t bucket_of(int64_t value) {
  const auto v = static_cast<uint64_t>(value);
  if (v < 64) return static_cast<size_t>(v);
  const auto shift = static_cast<int>(std::bit_width(v)) - 6;
  return static_cast<size_t>(shift) * 32 + static_cast<size_t>(v >> shift);
}

int64_t lower_end(size_t bucket) {
  if (bucket < 64) return static_cast<int64_t>(bucket);
  const size_t shift = bucket / 32 - 1;
  return static_cast<int64_t>(bucket - shift * 32) << shift;
}

class Simulation {
 public:
  Simulation(const SimulationConfig& config, Scheduler scheduler, const TraceSource& source,
             const std::function<void(const RequestOutcome&)>& observe)
      : config_(config),
        scheduler_(std::move(scheduler)),
        source_(source),
        observe_(observe),
        budget_(config.step_seconds, config.max_tokens) {
    report_.groups.resize(static_cast<size_t>(scheduler_.cache().num_groups()));
  }

  Result<SimulationReport> run() {
    if (auto read = read_next(); !read) return std::unexpected(read.error());
    while (true) {
      if (auto joined = join_arrivals(); !joined) return std::unexpected(joined.error());
      if (scheduler_.has_work()) {
        if (auto stepped = step(); !stepped) return std::unexpected(stepped.error());
      } else if (next_) {
        now_ns_ = std::max(now_ns_, next_->arrival_ns);
      } else {
        break;
      }
    }
    report_.duration_ns = now_ns_;
    const SchedulerStats stats = scheduler_.stats();
    report_.preemptions = static_cast<int64_t>(stats.preemptions);
    report_.evictions = static_cast<int64_t>(stats.evictions);
    report_.total_blocks = stats.total_blocks;
    for (size_t g = 0; g < report_.groups.size(); ++g) {
      const cache::GroupStats group = scheduler_.cache().stats(GroupId{static_cast<int32_t>(g)});
      report_.groups[g].hit_tokens = group.hit_tokens;
      report_.groups[g].evictions = group.blocks.evictions;
    }
    if (stats.free_blocks != stats.total_blocks)
      return fail(ErrorKind::kInternal, fmt::format("simulator: {} of {} blocks are free after the last request",
                                                    stats.free_blocks, stats.total_blocks));
    return report_;
  }

 private:
  // A request in the scheduler. Its RequestId has the place here in the low half, and a serial number in the high one.
  struct Live {
    RequestOutcome outcome;
    std::vector<TokenId> output;
    int64_t arrival_ns = 0;
    int64_t joined_step = 0;
  };

  Live& live_of(RequestId id) { return live_[static_cast<uint32_t>(id.value)]; }

  Result<void> read_next() {
    auto next = source_();
    if (!next) return std::unexpected(next.error());
    const int64_t earliest = next_ ? next_->arrival_ns : 0;
    next_ = std::move(*next);
    if (!next_) return {};
    if (next_->arrival_ns < earliest)
      return bad_request("arrives before the one ahead of it: requests must be in the order of their arrival");
    if (next_->arrival_ns > kLongest) return bad_request("arrives after more than a hundred years");
    if (count_tokens(next_->output) == 0) return bad_request("has an empty answer, it must have at least one token");
    return {};
  }

  std::unexpected<Error> bad_request(std::string_view what) const {
    return fail(ErrorKind::kInvalidRequest, fmt::format("request {} {}", next_index_, what));
  }

  Result<void> join_arrivals() {
    while (next_ && next_->arrival_ns <= now_ns_) {
      if (scheduler_.stats().waiting >= config_.max_waiting) {
        held_back_ = true;
        break;
      }
      join();
      ++next_index_;
      held_back_ = false;
      if (auto read = read_next(); !read) return read;
    }
    return {};
  }

  // Lengths are checked before tokens are made up: a short line of a trace may ask for any number of them.
  void join() {
    Live live{.outcome = {.index = next_index_}, .output = {}, .arrival_ns = next_->arrival_ns};
    live.joined_step = report_.steps;
    const int64_t longest = scheduler_.cache().max_model_len();
    const int64_t prompt_tokens = count_tokens(next_->prompt);
    const int64_t output_tokens = std::min(count_tokens(next_->output), longest - prompt_tokens);
    ++report_.requests;
    if (output_tokens < 1) {
      refuse(live.outcome,
             {ErrorKind::kInvalidRequest,
              fmt::format("the prompt has {} tokens, it may have {}", prompt_tokens, longest - 1), "prompt"});
      return;
    }
    const uint32_t place = free_places_.empty() ? static_cast<uint32_t>(live_.size()) : free_places_.back();
    const RequestId id{next_index_ << 32 | place};
    auto added = scheduler_.add({.id = id,
                                 .prompt = expand_tokens(next_->prompt, prompt_tokens),
                                 .max_tokens = output_tokens,
                                 .priority = next_->priority,
                                 .keys = {.cache_salt = std::move(next_->cache_salt)}});
    if (!added) {
      refuse(live.outcome, std::move(added.error()));
      return;
    }
    live.output = expand_tokens(next_->output, output_tokens);
    live.outcome.prompt_tokens = prompt_tokens;
    if (held_back_) ++report_.held_back;
    if (place == live_.size()) {
      live_.push_back(std::move(live));
    } else {
      free_places_.pop_back();
      live_[place] = std::move(live);
    }
  }

  void refuse(RequestOutcome& outcome, Error error) {
    if (++report_.refused == 1) report_.first_refusal = fmt::format("request {}: {}", outcome.index, error.message);
    outcome.refused = std::move(error);
    if (observe_) observe_(outcome);
  }

  Result<void> step() {
    const StepPlan plan = scheduler_.schedule(budget_.next(scheduler_.num_decoding(), scheduler_.num_requests() == 1));
    if (plan.requests.empty()) {
      // A state that the last step wrote may defer a request by one step, never by two.
      if (idle_) return fail(ErrorKind::kInternal, "simulator: requests wait, and none can run");
      idle_ = true;
      return {};
    }
    idle_ = false;
    const int64_t begin_ns = now_ns_;
    now_ns_ += config_.cost.step_ns + plan.total_tokens * config_.cost.token_ns;
    if (now_ns_ > kLongest)
      return fail(ErrorKind::kInvalidRequest,
                  "the simulated time exceeds a hundred years: make steps and tokens faster, or the trace shorter",
                  "cost");
    budget_.observe(plan.total_tokens, static_cast<double>(now_ns_ - begin_ns) * 1e-9);
    record(plan, begin_ns);
    ++report_.steps;
    if (auto ok = check(); !ok) return ok;
    for (const RequestId id : scheduler_.apply(plan, outputs_)) end(id);
    return check();
  }

  Result<void> check() const { return config_.check_integrity ? scheduler_.integrity() : Result<void>{}; }

  // Takes down what the step does, and the tokens that it answers.
  void record(const StepPlan& plan, int64_t begin_ns) {
    outputs_.clear();
    for (const PlannedRequest& planned : plan.requests) {
      Live& live = live_of(planned.id);
      RequestOutcome& outcome = live.outcome;
      if (planned.first && !planned.resumed) {
        outcome.cached_tokens = planned.num_cached;
        outcome.waited_steps = report_.steps - live.joined_step;
        outcome.waited_ns = begin_ns - live.arrival_ns;
      }
      if (!planned.samples) continue;
      if (outcome.output_tokens == 0) outcome.first_token_ns = now_ns_ - live.arrival_ns;
      const auto token = std::span(live.output).subspan(static_cast<size_t>(outcome.output_tokens), 1);
      outputs_.push_back({.id = planned.id, .tokens = token});
      ++outcome.output_tokens;
    }
    for (const RequestId id : plan.preempted) ++live_of(id).outcome.preemptions;
    report_.computed_tokens += plan.total_tokens;
    report_.running.add(std::ssize(plan.requests));
    const cache::BlockPool& pool = scheduler_.cache().pool();
    report_.blocks.add(pool.total() - 1 - pool.free_count());
    for (size_t g = 0; g < report_.groups.size(); ++g)
      report_.groups[g].held.add(pool.of_group(GroupId{static_cast<int32_t>(g)}).held);
  }

  void end(RequestId id) {
    Live& live = live_of(id);
    RequestOutcome& outcome = live.outcome;
    outcome.total_ns = now_ns_ - live.arrival_ns;
    report_.prompt_tokens += outcome.prompt_tokens;
    report_.cached_tokens += outcome.cached_tokens;
    report_.output_tokens += outcome.output_tokens;
    report_.waited_steps.add(outcome.waited_steps);
    report_.waited_ns.add(outcome.waited_ns);
    report_.first_token_ns.add(outcome.first_token_ns);
    if (observe_) observe_(outcome);
    live = {};
    free_places_.push_back(static_cast<uint32_t>(id.value));
  }

  const SimulationConfig& config_;
  Scheduler scheduler_;
  const TraceSource& source_;
  const std::function<void(const RequestOutcome&)>& observe_;
  StepBudget budget_;

  SimulationReport report_;
  std::optional<TraceRequest> next_;  // read, not joined yet
  uint64_t next_index_ = 0;
  bool held_back_ = false;  // next_ found the queue full
  int64_t now_ns_ = 0;
  bool idle_ = false;  // the last plan was empty
  std::vector<Live> live_;
  std::vector<uint32_t> free_places_;
  std::vector<RequestOutput> outputs_;
};

Result<void> check_config(const SimulationConfig& config) {
  if (config.scheduler.overlapped || config.scheduler.num_draft_tokens > 0 || config.scheduler.num_lookahead_tokens > 0)
    return fail(ErrorKind::kUnsupported, "the simulator runs one step at a time, without drafts");
  // A step of kMostSimulated tokens of kMostCostNs does not overflow the clock.
  const struct {
    const char* name;
    int64_t value, least, most;
  } fields[] = {{"max_tokens", config.max_tokens, 1, kMostSimulated},
                {"num_blocks", config.cache.num_blocks, 1, kMostSimulated},
                {"max_waiting", config.max_waiting, 1, kMostSimulated},
                {"step_ns", config.cost.step_ns, 0, kMostCostNs},
                {"token_ns", config.cost.token_ns, 0, kMostCostNs}};
  for (const auto& field : fields) {
    if (field.value < field.least || field.value > field.most)
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("{} is {}, it must be {} to {}", field.name, field.value, field.least, field.most),
                  field.name);
  }
  if (config.step_seconds > 0) return {};
  return fail(ErrorKind::kInvalidRequest, fmt::format("step_seconds is {}, it must be above 0", config.step_seconds),
              "step_seconds");
}

}  // namespace

int64_t count_tokens(const std::vector<TokenPiece>& pieces) {
  int64_t count = 0;
  for (const auto& piece : pieces) {
    const auto* segment = std::get_if<Segment>(&piece);
    count += segment != nullptr ? segment->count : std::ssize(std::get<std::vector<TokenId>>(piece));
  }
  return count;
}

std::vector<TokenId> expand_tokens(const std::vector<TokenPiece>& pieces, int64_t limit) {
  std::vector<TokenId> tokens;
  tokens.reserve(static_cast<size_t>(std::min(count_tokens(pieces), limit)));
  for (const auto& piece : pieces) {
    const int64_t room = limit - std::ssize(tokens);
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&piece)) {
      tokens.insert(tokens.end(), ids->begin(), ids->begin() + std::min(room, std::ssize(*ids)));
      continue;
    }
    const auto& segment = std::get<Segment>(piece);
    for (int64_t i = 0; i < std::min(room, segment.count); ++i)
      tokens.push_back(static_cast<TokenId>(mix(segment.key ^ mix(static_cast<uint64_t>(i))) >> 33));
  }
  return tokens;
}

void Distribution::add(int64_t value) {
  ++buckets_[bucket_of(std::max<int64_t>(value, 0))];
  ++count_;
  sum_ += static_cast<double>(value);
  max_ = std::max(max_, value);
}

int64_t Distribution::quantile(double part) const {
  const auto wanted = static_cast<int64_t>(part * static_cast<double>(count_) + 0.5);
  int64_t seen = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket];
    if (seen >= std::max<int64_t>(wanted, 1)) return lower_end(bucket);
  }
  return 0;
}

Result<SimulationReport> simulate(const SimulationConfig& config, const TraceSource& source,
                                  const std::function<void(const RequestOutcome&)>& observe) {
  if (auto ok = check_config(config); !ok) return std::unexpected(ok.error());
  auto scheduler = Scheduler::create(config.scheduler, config.cache);
  if (!scheduler) return std::unexpected(scheduler.error());
  return Simulation(config, std::move(*scheduler), source, observe).run();
}

}  // namespace quire::sched
