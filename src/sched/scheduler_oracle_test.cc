// Random request streams against an oracle that remembers what was really written into every block.
//
// A stand-in for the model keeps, for each row of each block, a digest of the tokens that led to what was written
// there. It runs every plan as an engine would: copies, then all writes, then all reads. Whatever a layer of some group
// would read must be what this very request's tokens give: a wrong hit, a block freed too early, a missing copy or a
// stale row is found at once. The next token is a function of the digest, so answers cannot depend on scheduling.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "sched/scheduler.h"
#include "sched/test_specs.h"

namespace quire::sched {
namespace {

using cache::CacheSpec;
using cache::keeps;

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0xbf58476d1ce4e5b9U;
  return h ^ h >> 29;
}

// Digests of all prefixes: [n] stands for the first n tokens.
std::vector<uint64_t> prefixes(const std::string& salt, std::span<const TokenId> tokens) {
  std::vector<uint64_t> digests = {mix(1, std::hash<std::string>{}(salt))};
  for (const TokenId token : tokens) digests.push_back(mix(digests.back(), static_cast<uint64_t>(token) + 1));
  return digests;
}

TokenId next_token(uint64_t digest) { return static_cast<TokenId>(digest >> 13 & 3U); }

class Model {
 public:
  explicit Model(std::vector<cache::GroupConfig> groups) : groups_(std::move(groups)) {}

  struct Life {
    std::string salt;
    std::vector<TokenId> tokens;  // with all output so far
    int64_t computed = 0;
  };
  std::map<RequestId, Life> lives;

  using Sampled = std::vector<std::pair<RequestId, std::vector<TokenId>>>;

  // Runs the plan; returns the tokens of each request that samples, in the plan's order.
  Sampled run(const Scheduler& scheduler, const StepPlan& plan) {
    for (const auto& copy : plan.copies) content_[copy.target] = content_[copy.source];
    std::vector<Part> parts;
    for (size_t i = 0; i < plan.requests.size(); ++i) parts.push_back(part_of(plan, i));
    for (const auto& part : parts) check_states(scheduler, part);
    for (const auto& part : parts) write(scheduler, part);
    for (const auto& part : parts) read(scheduler, part);
    Sampled sampled;
    for (const auto& part : parts) {
      std::vector<TokenId> tokens = accept(part);
      if (part.samples) sampled.emplace_back(part.id, std::move(tokens));
    }
    return sampled;
  }

  // What the model would say after the request's tokens: drafts that will be accepted.
  std::vector<TokenId> foresee(RequestId id, int64_t count) const {
    const Life& life = lives.at(id);
    std::vector<TokenId> tokens = life.tokens;
    while (count-- > 0) tokens.push_back(next_token(prefixes(life.salt, tokens).back()));
    return {tokens.begin() + static_cast<std::ptrdiff_t>(life.tokens.size()), tokens.end()};
  }

 private:
  struct Part {
    RequestId id;
    int64_t start = 0;
    int64_t end = 0;
    int64_t num_drafts = 0;
    bool samples = false;
    std::vector<TokenId> drafts;
    std::vector<uint64_t> digests;
  };

  // In overlapped steps the plan hopes that all drafts before it are accepted, and does not know its own.
  Part part_of(const StepPlan& plan, size_t i) {
    const auto& planned = plan.requests[i];
    Life& life = lives.at(planned.id);
    if (planned.first) life.computed = planned.num_computed;
    RC_ASSERT(life.computed <= planned.num_computed);
    Part part{.id = planned.id,
              .start = life.computed,
              .end = life.computed + planned.num_new,
              .num_drafts = planned.num_drafts,
              .samples = planned.samples,
              .drafts = {},
              .digests = {}};
    const auto drafts = plan.drafts_of(i);
    part.drafts.assign(drafts.begin(), drafts.end());
    if (!part.drafts.empty() && part.drafts[0] < 0) part.drafts = foresee(part.id, part.num_drafts);
    if (part.drafts.size() > 1) part.drafts.back() ^= 1;  // one of them will be wrong
    std::vector<TokenId> tokens = life.tokens;
    const int64_t known = part.end - part.num_drafts;
    RC_ASSERT(known <= static_cast<int64_t>(tokens.size()));
    RC_ASSERT((known == static_cast<int64_t>(tokens.size())) == part.samples);
    tokens.insert(tokens.end(), part.drafts.begin(), part.drafts.end());
    part.digests = prefixes(life.salt, tokens);
    return part;
  }

  int64_t block_of(size_t g) const { return groups_[g].spec.block_size; }

  uint64_t& row_at(const Scheduler& scheduler, const Part& part, size_t g, int64_t position) {
    const auto row = scheduler.block_row(part.id, GroupId{static_cast<int32_t>(g)});
    const auto column = static_cast<size_t>(position / block_of(g));
    RC_ASSERT(column < row.size());
    RC_ASSERT(row[column] != kNullBlock);
    auto& rows = content_[row[column]];
    rows.resize(64);
    const bool state = keeps<cache::RecurrentState>(groups_[g].spec);
    return rows[state ? 0 : static_cast<size_t>(position % block_of(g))];
  }

  void check_states(const Scheduler& scheduler, const Part& part) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!keeps<cache::RecurrentState>(groups_[g].spec) || part.start == 0) continue;
      RC_ASSERT(row_at(scheduler, part, g, part.start - 1) == part.digests[static_cast<size_t>(part.start)]);
    }
  }

  void write(const Scheduler& scheduler, const Part& part) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (keeps<cache::CircularBuffer>(groups_[g].spec)) {
        RC_ASSERT(scheduler.block_row(part.id, GroupId{static_cast<int32_t>(g)}).size() == 1U);
        continue;
      }
      const bool state = keeps<cache::RecurrentState>(groups_[g].spec);
      for (int64_t p = state ? part.end - 1 : part.start; p < part.end; ++p) {
        row_at(scheduler, part, g, p) = part.digests[static_cast<size_t>(p + 1)];
      }
    }
  }

  void read(const Scheduler& scheduler, const Part& part) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const CacheSpec& spec = groups_[g].spec;
      if (keeps<cache::RecurrentState>(spec) || keeps<cache::CircularBuffer>(spec)) continue;
      int64_t first = 0;  // what the first of the new tokens sees; the others see no more before it
      if (const auto* w = std::get_if<cache::SlidingWindow>(&spec.retention)) {
        first = std::max<int64_t>(0, part.start - w->window + 1);
      }
      if (const auto* c = std::get_if<cache::ChunkedLocal>(&spec.retention)) first = part.start / c->chunk * c->chunk;
      for (int64_t p = first; p < part.end; ++p) {
        RC_ASSERT(row_at(scheduler, part, g, p) == part.digests[static_cast<size_t>(p + 1)]);
      }
    }
  }

  // The accepted drafts and one token more.
  std::vector<TokenId> accept(const Part& part) {
    Life& life = lives.at(part.id);
    life.computed = part.end;
    if (!part.samples) return {};
    std::vector<TokenId> tokens;
    const size_t known = life.tokens.size();
    for (size_t j = 0; j <= part.drafts.size(); ++j) {
      tokens.push_back(next_token(part.digests[known + j]));
      if (j == part.drafts.size() || tokens.back() != part.drafts[j]) break;
    }
    life.tokens.insert(life.tokens.end(), tokens.begin(), tokens.end());
    life.computed -= part.num_drafts + 1 - static_cast<int64_t>(tokens.size());
    return tokens;
  }

  std::vector<cache::GroupConfig> groups_;
  std::map<BlockId, std::vector<uint64_t>> content_;
};

struct World {
  SchedulerConfig scheduler;
  cache::CoordinatorConfig cache;
  int64_t budget = 0;
  int64_t stretch = 0;
  bool has_states = false;
};

// The smallest pool that lets one request run, and a few blocks more.
World random_world() {
  World world;
  auto& cache = world.cache;
  cache.max_model_len = *rc::gen::inRange<int64_t>(8, 60);
  cache.enable_caching = *rc::gen::inRange(0, 5) > 0;
  world.budget = *rc::gen::inRange<int64_t>(1, 20);
  world.stretch = *rc::gen::element<int64_t>(0, 0, 1, 5, 12);
  const int groups = *rc::gen::inRange(1, 4);
  for (int g = 0; g < groups; ++g) {
    const CacheSpec spec = random_spec();
    world.has_states |= keeps<cache::RecurrentState>(spec);
    cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
  }
  auto& scheduler = world.scheduler;
  scheduler.max_num_seqs = *rc::gen::inRange<int64_t>(1, 5);
  scheduler.long_prefill_threshold = *rc::gen::element<int64_t>(0, 0, 3, 9);
  scheduler.policy = *rc::gen::element(Policy::kFcfs, Policy::kPriority);
  scheduler.overlapped = *rc::gen::inRange(0, 3) == 0;
  scheduler.reserve_whole_sequence = *rc::gen::inRange(0, 4) == 0;
  scheduler.watermark = *rc::gen::element(0.0, 0.0, 0.1);
  if (!world.has_states) {
    scheduler.num_draft_tokens = *rc::gen::element<int64_t>(0, 0, 1, 3);
    scheduler.num_lookahead_tokens = *rc::gen::element<int64_t>(0, scheduler.num_draft_tokens);
  }
  cache.limits.max_in_flight_tokens = (world.budget + world.stretch / 2) * (scheduler.overlapped ? 2 : 1);
  const int64_t lookahead = scheduler.num_lookahead_tokens;
  cache.lookahead_tokens = lookahead;
  cache.overlapped_steps = scheduler.overlapped;
  cache.num_blocks = 100;
  const auto probe = cache::Coordinator::create(cache);
  RC_PRE(probe.has_value());
  cache.num_blocks = 1 + probe->max_blocks_held(cache.max_model_len) + *rc::gen::inRange(0, 8);
  using Keep = cache::RetentionPolicy::Keep;
  cache.retention.keep =
      *rc::gen::element(Keep::kEveryBoundary, Keep::kKnownReuse, Keep::kTurnEnds, Keep::kEveryInterval);
  cache.remembered_evictions = *rc::gen::element(0, 5, 1000);
  if (cache.retention.keep == Keep::kEveryInterval) cache.retention.interval_tokens = 2 * probe->scheduler_block();
  return world;
}

std::string describe(const World& w) {
  std::string text = fmt::format(
      "{} blocks, length {}, budget {} + {}, caching {}, {} seqs, threshold {}, priority {}, overlapped {}, whole {}, "
      "watermark {}, drafts {}, lookahead {}, retention {}\n",
      w.cache.num_blocks, w.cache.max_model_len, w.budget, w.stretch, w.cache.enable_caching, w.scheduler.max_num_seqs,
      w.scheduler.long_prefill_threshold, w.scheduler.policy == Policy::kPriority, w.scheduler.overlapped,
      w.scheduler.reserve_whole_sequence, w.scheduler.watermark, w.scheduler.num_draft_tokens,
      w.scheduler.num_lookahead_tokens, static_cast<int>(w.cache.retention.keep));
  for (const auto& g : w.cache.groups) text += fmt::format("  {} of {}\n", cache::name_of(g.spec), g.spec.block_size);
  return text;
}

RequestInit random_request(uint64_t id, const World& world) {
  RequestInit init{.id = RequestId{id}, .prompt = {}};
  init.max_tokens = *rc::gen::inRange<int64_t>(0, 16);
  const int64_t longest = world.cache.max_model_len - std::min<int64_t>(init.max_tokens, 1);
  const auto length = *rc::gen::inRange<size_t>(1, static_cast<size_t>(longest) + 1);
  const auto shared = *rc::gen::inRange<size_t>(0, length + 1);
  for (size_t i = 0; i < length; ++i) {
    init.prompt.push_back(i < shared ? static_cast<TokenId>(i % 3) : *rc::gen::inRange<TokenId>(0, 4));
  }
  init.priority = *rc::gen::inRange(0, 3);
  init.keys.cache_salt = *rc::gen::element<std::string>("", "", "a");
  init.skip_prefix_lookup = *rc::gen::inRange(0, 6) == 0;
  init.explain = *rc::gen::arbitrary<bool>();
  return init;
}

// Every group's hit and misses make up the prompt; where all groups have a prefix, it is a hit.
void check_report(const RequestState& request, bool may_give_up_a_hit) {
  RC_ASSERT(request.report.has_value() == request.init.explain);
  if (!request.report) return;
  std::vector<bool> some_group_lacks(static_cast<size_t>(request.num_prompt), false);
  for (const GroupReport& group : request.report->groups) {
    int64_t at = group.hit_tokens;
    RC_ASSERT(at == 0 || at == request.num_cached);
    for (const CacheMiss& miss : group.misses) {
      RC_ASSERT(miss.from == at && miss.to > at);
      RC_ASSERT(!miss.evicted_seconds_ago || *miss.evicted_seconds_ago >= 0);
      for (; at < miss.to; ++at) {
        if (miss.reason != MissReason::kUnused) some_group_lacks[static_cast<size_t>(at)] = true;
      }
    }
    RC_ASSERT(at == request.num_prompt);
  }
  for (int64_t at = *request.num_cached; at < request.num_prompt; ++at) {
    RC_ASSERT(may_give_up_a_hit || some_group_lacks[static_cast<size_t>(at)]);
  }
}

// Knows the prefix index from its events alone.
class Follower {
 public:
  void take(const cache::CacheEvent& event) {
    if (std::holds_alternative<cache::AllClearedEvent>(event)) findable_.clear();
    if (const auto* stored = std::get_if<cache::StoredEvent>(&event)) {
      RC_ASSERT(std::ssize(stored->tokens) == std::ssize(stored->hashes) * stored->block_size);
      RC_ASSERT(stored->extra_keys.size() == stored->hashes.size());
      for (const auto& hash : stored->hashes) ++findable_[{stored->group, hash}];
    }
    if (const auto* removed = std::get_if<cache::RemovedEvent>(&event)) {
      for (const auto& hash : removed->hashes) {
        const auto found = findable_.find({removed->group, hash});
        RC_ASSERT(found != findable_.end());
        if (--found->second == 0) findable_.erase(found);
      }
    }
  }
  void check(const cache::PrefixIndex& index) const {
    int64_t entries = 0;
    for (const auto& [key, blocks] : findable_) {
      RC_ASSERT(index.find({key.second, key.first}) != kNullBlock);
      entries += blocks;
    }
    RC_ASSERT(entries == index.size());
  }

 private:
  std::map<std::pair<GroupId, cache::BlockHash>, int64_t> findable_;  // by how many blocks
};

void check(const Scheduler& scheduler) {
  const auto ok = scheduler.integrity();
  if (!ok) RC_FAIL(ok.error().message);
}

// One step behind, if steps overlap.
class Driver {
 public:
  Driver(Scheduler& scheduler, Model& model, const World& world) : scheduler_(scheduler), model_(model), world_(world) {
    scheduler_.subscribe([this](const cache::CacheEvent& event) { follower_.take(event); });
  }
  ~Driver() { scheduler_.subscribe({}); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  void step() {
    StepPlan plan = scheduler_.schedule({world_.budget, world_.stretch}, ++now_);
    check(scheduler_);
    follower_.check(scheduler_.cache().pool().index());
    for (const auto& planned : plan.requests) {
      if (planned.first && !planned.resumed) check_report(*scheduler_.find(planned.id), world_.has_states);
    }
    RC_ASSERT(plan.total_tokens <= world_.budget + world_.stretch);
    Model::Sampled sampled = model_.run(scheduler_, plan);
    waiting_.emplace_back(std::move(plan), std::move(sampled));
    if (waiting_.size() > (world_.scheduler.overlapped ? 1U : 0U)) apply_oldest();
  }
  void check_events() const { follower_.check(scheduler_.cache().pool().index()); }
  void drain() {
    while (!waiting_.empty()) apply_oldest();
  }

 private:
  void apply_oldest() {
    const auto [plan, sampled] = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    std::vector<RequestOutput> outputs;
    for (const auto& [id, tokens] : sampled) outputs.push_back({.id = id, .tokens = tokens});
    scheduler_.apply(plan, outputs);
    check(scheduler_);
    for (const auto& planned : plan.requests) {
      const auto* request = scheduler_.find(planned.id);
      if (request == nullptr) continue;
      const auto& truth = model_.lives.at(planned.id).tokens;
      RC_ASSERT(request->tokens.size() <= truth.size());
      RC_ASSERT(std::equal(request->tokens.begin(), request->tokens.end(), truth.begin()));
      if (world_.scheduler.overlapped || world_.scheduler.num_draft_tokens == 0) continue;
      std::vector<TokenId> drafts = model_.foresee(planned.id, world_.scheduler.num_draft_tokens);
      scheduler_.set_drafts(planned.id, drafts);
    }
  }

  Scheduler& scheduler_;
  Model& model_;
  const World& world_;
  Follower follower_;
  double now_ = 0;
  std::vector<std::pair<StepPlan, Model::Sampled>> waiting_;
};

void run_stream() {
  const World world = random_world();
  RC_LOG() << describe(world);
  auto made = Scheduler::create(world.scheduler, world.cache);
  RC_ASSERT(made.has_value());
  Scheduler& scheduler = *made;
  Model model(world.cache.groups);
  Driver driver(scheduler, model, world);
  const auto num_requests = *rc::gen::inRange<uint64_t>(1, 12);
  for (uint64_t id = 0; id < num_requests; ++id) {
    RequestInit init = random_request(id, world);
    model.lives[init.id] = {init.keys.cache_salt, init.prompt, 0};
    RC_ASSERT(scheduler.add(std::move(init)).has_value());
    for (int steps = *rc::gen::inRange(0, 6); steps > 0; --steps) driver.step();
    if (*rc::gen::inRange(0, 8) == 0) scheduler.abort(RequestId{*rc::gen::inRange<uint64_t>(0, num_requests)});
    check(scheduler);
  }
  for (int steps = 0; scheduler.has_work(); ++steps) {
    RC_ASSERT(steps < 5000);
    driver.step();
  }
  driver.drain();
  if (*rc::gen::inRange(0, 4) == 0) scheduler.forget_prefixes();
  driver.check_events();
  RC_ASSERT(scheduler.stats().free_blocks == scheduler.stats().total_blocks);
  check(scheduler);
}

TEST(SchedulerOracle, RandomStreamsUnderTinyPoolsFinishWithTheRightTokens) { EXPECT_TRUE(rc::check(run_stream)); }

}  // namespace
}  // namespace quire::sched
