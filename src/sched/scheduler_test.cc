#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace quire::sched {
namespace {

using cache::CacheSpec;

CacheSpec full(int64_t block) { return {.block_size = block, .state_bytes = 16}; }

cache::CoordinatorConfig cache_of(const std::vector<CacheSpec>& specs, int64_t num_blocks, int64_t length = 256) {
  cache::CoordinatorConfig config{
      .num_blocks = num_blocks, .max_model_len = length, .limits = {.max_in_flight_tokens = 64}};
  for (const auto& spec : specs) config.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
  return config;
}

Scheduler make(SchedulerConfig config, cache::CoordinatorConfig cache) {
  auto made = Scheduler::create(config, std::move(cache));
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

RequestInit request(uint64_t id, int64_t length, TokenId from = 0) {
  RequestInit init{.id = RequestId{id}, .prompt = std::vector<TokenId>(static_cast<size_t>(length))};
  std::iota(init.prompt.begin(), init.prompt.end(), from);
  return init;
}

// Every sampling request gets token 7.
std::vector<RequestId> apply(Scheduler& scheduler, const StepPlan& plan, bool stopped = false) {
  static const TokenId token = 7;
  std::vector<RequestOutput> outputs;
  for (const auto& r : plan.requests) {
    if (r.samples) outputs.push_back({.id = r.id, .tokens = {&token, 1}, .stopped = stopped});
  }
  const auto ended = scheduler.apply(plan, outputs);
  const auto ok = scheduler.integrity();
  EXPECT_TRUE(ok) << ok.error().message;
  return ended;
}

void run_step(Scheduler& scheduler, int64_t budget = 64) {
  const StepPlan plan = scheduler.schedule(budget);
  apply(scheduler, plan);
}

std::vector<uint64_t> ids(const std::vector<RequestId>& list) {
  std::vector<uint64_t> values;
  for (const RequestId id : list) values.push_back(id.value);
  return values;
}

TEST(Scheduler, PlansARequestFromPromptToEnd) {
  auto scheduler = make({}, cache_of({full(4)}, 20));
  RequestInit init = request(1, 10);
  init.max_tokens = 2;
  ASSERT_TRUE(scheduler.add(std::move(init)));
  StepPlan plan = scheduler.schedule(8);
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_TRUE(plan.requests[0].first);
  EXPECT_FALSE(plan.requests[0].samples);
  EXPECT_EQ(plan.requests[0].num_new, 8);
  EXPECT_EQ(plan.new_blocks(0, GroupId{0}).size(), 2U);
  EXPECT_TRUE(apply(scheduler, plan).empty());

  plan = scheduler.schedule(8);
  EXPECT_FALSE(plan.requests[0].first);
  EXPECT_TRUE(plan.requests[0].samples);
  EXPECT_EQ(plan.requests[0].num_computed, 8);
  EXPECT_EQ(plan.requests[0].num_new, 2);
  EXPECT_TRUE(apply(scheduler, plan).empty());
  EXPECT_EQ(scheduler.find(RequestId{1})->tokens.back(), 7);

  plan = scheduler.schedule(8);
  EXPECT_EQ(plan.requests[0].num_new, 1);
  EXPECT_EQ(ids(apply(scheduler, plan)), (std::vector<uint64_t>{1}));
  EXPECT_EQ(scheduler.find(RequestId{1}), nullptr);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(ids(scheduler.schedule(8).finished), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(scheduler.schedule(8).finished.empty());
  EXPECT_EQ(scheduler.stats().free_blocks, 19);
}

TEST(Scheduler, EndsWhereTheCallerSays) {
  auto scheduler = make({}, cache_of({full(4)}, 20));
  ASSERT_TRUE(scheduler.add(request(1, 5)));
  EXPECT_EQ(ids(apply(scheduler, scheduler.schedule(8), true)), (std::vector<uint64_t>{1}));
  EXPECT_FALSE(scheduler.has_work());
}

TEST(Scheduler, EndsAtTheModelsLength) {
  auto scheduler = make({}, cache_of({full(4)}, 20, 8));
  RequestInit init = request(1, 6);
  init.max_tokens = 100;
  ASSERT_TRUE(scheduler.add(std::move(init)));
  run_step(scheduler);
  EXPECT_TRUE(scheduler.has_work());
  run_step(scheduler);
  EXPECT_FALSE(scheduler.has_work());
}

// As long as the model's length, in blocks that the next one finds.
TEST(Scheduler, EndsWithThePromptWhereNoOutputIsWanted) {
  auto scheduler = make({}, cache_of({full(4)}, 20, 24));
  const auto plan_one = [&](uint64_t id, int64_t budget) {
    RequestInit init = request(id, 24);
    init.max_tokens = 0;
    EXPECT_TRUE(scheduler.add(std::move(init)));
    return scheduler.schedule(budget);
  };
  StepPlan plan = plan_one(1, 20);
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_FALSE(plan.requests[0].samples);
  EXPECT_TRUE(scheduler.apply(plan, {}).empty());
  plan = scheduler.schedule(20);
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_TRUE(plan.requests[0].samples);
  EXPECT_EQ(plan.requests[0].num_new, 4);
  EXPECT_EQ(ids(scheduler.apply(plan, {})), (std::vector<uint64_t>{1}));
  EXPECT_FALSE(scheduler.has_work());
  plan = plan_one(2, 20);
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].num_cached, 20);
  EXPECT_EQ(ids(scheduler.apply(plan, {})), (std::vector<uint64_t>{2}));
  EXPECT_EQ(scheduler.stats().free_blocks, 19);
}

TEST(Scheduler, DecodesFirstAndFillsTheBudgetWithChunks) {
  auto scheduler = make({.long_prefill_threshold = 12}, cache_of({full(4)}, 60));
  ASSERT_TRUE(scheduler.add(request(1, 5)));
  run_step(scheduler);
  ASSERT_TRUE(scheduler.add(request(2, 40, 100)));
  ASSERT_TRUE(scheduler.add(request(3, 40, 200)));
  const StepPlan plan = scheduler.schedule(20);
  ASSERT_EQ(plan.requests.size(), 3U);
  EXPECT_EQ(plan.requests[0].num_new, 1);
  EXPECT_EQ(plan.requests[1].num_new, 12);
  EXPECT_EQ(plan.requests[2].num_new, 7);
  EXPECT_EQ(plan.total_tokens, 20);
  apply(scheduler, plan);
}

TEST(Scheduler, NeverPlansMoreThanTheCacheWasSizedFor) {
  auto scheduler = make({}, cache_of({full(4)}, 200));
  ASSERT_TRUE(scheduler.add(request(1, 100)));
  EXPECT_EQ(scheduler.schedule(1000).total_tokens, 64);
}

TEST(Scheduler, FinishesAPromptOfWhichLittleWouldBeLeft) {
  struct Case {
    int64_t prompt, tokens, stretch;
    std::vector<int64_t> steps;  // tokens of the prompt that each computes
  };
  const std::vector<Case> cases = {
      {20, 16, 0, {16, 4}},  {20, 16, 3, {16, 4}},     {20, 16, 4, {20}},
      {40, 16, 8, {16, 24}}, {41, 16, 8, {16, 16, 9}}, {80, 60, 40, {60, 20}},  // 64 tokens may be in flight
  };
  for (const Case& c : cases) {
    auto scheduler = make({}, cache_of({full(4)}, 40));
    ASSERT_TRUE(scheduler.add(request(1, c.prompt)));
    for (const int64_t expected : c.steps) {
      const StepPlan plan = scheduler.schedule({c.tokens, c.stretch});
      EXPECT_EQ(plan.total_tokens, expected) << c.prompt << " in " << c.tokens << " + " << c.stretch;
      apply(scheduler, plan);
    }
    EXPECT_EQ(scheduler.schedule(64).total_tokens, 1);  // decodes
  }
}

TEST(Scheduler, StartsNobodyInAStretchedStep) {
  auto scheduler = make({}, cache_of({full(4)}, 40));
  for (const uint64_t id : {1U, 2U, 3U}) ASSERT_TRUE(scheduler.add(request(id, 12, static_cast<TokenId>(100 * id))));
  const StepPlan plan = scheduler.schedule({20, 10});
  ASSERT_EQ(plan.requests.size(), 2U);
  EXPECT_EQ(plan.requests[1].num_new, 12);
}

// The one that gave way could run again in a small chunk at once: it would take the blocks that it just gave.
TEST(Scheduler, StartsNobodyInAStepThatPreempted) {
  auto cache = cache_of({full(4)}, 7);
  cache.enable_caching = false;
  auto scheduler = make({}, std::move(cache));
  for (const auto& [id, length] : {std::pair<uint64_t, int64_t>{1, 8}, {2, 16}}) {
    RequestInit init = request(id, length, static_cast<TokenId>(100 * id));
    init.max_tokens = 2;
    ASSERT_TRUE(scheduler.add(std::move(init)));
  }
  run_step(scheduler);
  const StepPlan plan = scheduler.schedule(8);
  EXPECT_EQ(ids(plan.preempted), (std::vector<uint64_t>{2}));
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].id, RequestId{1});
  apply(scheduler, plan);
  const StepPlan next = scheduler.schedule(8);
  ASSERT_EQ(next.requests.size(), 1U);
  EXPECT_TRUE(next.requests[0].resumed);
}

TEST(Scheduler, TakesPrefixesFromTheCache) {
  auto scheduler = make({}, cache_of({full(4)}, 60));
  ASSERT_TRUE(scheduler.add(request(1, 20)));
  run_step(scheduler);
  ASSERT_TRUE(scheduler.add(request(2, 20)));
  RequestInit all = request(3, 20);
  all.skip_prefix_lookup = true;
  ASSERT_TRUE(scheduler.add(std::move(all)));
  RequestInit salted = request(4, 20);
  salted.keys.cache_salt = "other";
  ASSERT_TRUE(scheduler.add(std::move(salted)));
  const StepPlan plan = scheduler.schedule(64);
  ASSERT_EQ(plan.requests.size(), 4U);
  EXPECT_EQ(plan.requests[1].num_cached, 16);
  EXPECT_EQ(plan.requests[1].num_new, 4);
  EXPECT_EQ(plan.requests[2].num_cached, 0);
  EXPECT_EQ(plan.requests[3].num_cached, 0);
  EXPECT_EQ(plan.new_blocks(1, GroupId{0}).front(), scheduler.block_row(RequestId{1}, GroupId{0}).front());
  apply(scheduler, plan);
  EXPECT_EQ(scheduler.stats().prefix_queries, 60U);  // not the one that skips
  EXPECT_EQ(scheduler.stats().prefix_hits, 16U);
}

// A report costs lookups: it is made when the request starts, not in every step in which it waits.
TEST(Scheduler, ExplainsARequestWhenItStarts) {
  auto cache = cache_of({full(4)}, 10);
  cache.remembered_evictions = 100;
  auto scheduler = make({}, std::move(cache));
  for (const uint64_t id : {1U, 2U}) {
    RequestInit init = request(id, 24);
    init.max_tokens = 4;
    if (id == 2) init.prompt[10] = 99;
    init.explain = id == 2;
    ASSERT_TRUE(scheduler.add(std::move(init)));
  }
  run_step(scheduler);  // 6 blocks of 9; 2 has two in common with 1, and needs four more
  EXPECT_EQ(scheduler.stats().running, 1);
  EXPECT_FALSE(scheduler.find(RequestId{2})->report);
  ASSERT_TRUE(scheduler.abort(RequestId{1}));
  run_step(scheduler);
  const auto& report = scheduler.find(RequestId{2})->report;
  ASSERT_TRUE(report);
  EXPECT_EQ(report->groups[0].hit_tokens, 8);
  EXPECT_EQ(report->groups[0].misses.front().reason, MissReason::kNeverSeen);
}

// What a preempted request finds again is its own: it counts as no reuse, as in vLLM.
TEST(Scheduler, CountsNoReuseWhenARequestIsResumed) {
  auto scheduler = make({}, cache_of({full(4)}, 11));
  for (const uint64_t id : {1U, 2U}) {
    RequestInit init = request(id, 16, static_cast<TokenId>(100 * id));
    init.max_tokens = 8;
    ASSERT_TRUE(scheduler.add(std::move(init)));
  }
  int64_t found_again = 0;
  while (scheduler.has_work()) {
    const StepPlan plan = scheduler.schedule(64);
    for (const auto& planned : plan.requests) found_again += planned.resumed ? planned.num_cached : 0;
    apply(scheduler, plan);
  }
  EXPECT_GT(scheduler.stats().preemptions, 0U);
  EXPECT_GT(found_again, 0);
  EXPECT_EQ(scheduler.stats().prefix_queries, 32U);
  EXPECT_EQ(scheduler.stats().prefix_hits, 0U);
  EXPECT_EQ(scheduler.cache().stats(GroupId{0}).hit_tokens, 0);
}

TEST(Scheduler, WithoutCachingNothingIsFound) {
  auto cache = cache_of({full(4)}, 60);
  cache.enable_caching = false;
  auto scheduler = make({}, std::move(cache));
  ASSERT_TRUE(scheduler.add(request(1, 20)));
  run_step(scheduler);
  ASSERT_TRUE(scheduler.add(request(2, 20)));
  EXPECT_EQ(scheduler.schedule(64).requests[1].num_cached, 0);
  EXPECT_EQ(scheduler.stats().prefix_queries, 0U);
}

TEST(Scheduler, AbortsWaitingAndRunningRequests) {
  auto scheduler = make({.max_num_seqs = 1}, cache_of({full(4)}, 20));
  ASSERT_TRUE(scheduler.add(request(1, 8)));
  ASSERT_TRUE(scheduler.add(request(2, 8, 50)));
  const StepPlan plan = scheduler.schedule(64);
  EXPECT_EQ(ids(scheduler.running()), (std::vector<uint64_t>{1}));
  EXPECT_EQ(ids(scheduler.waiting()), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(scheduler.abort(RequestId{1}));  // while its step runs
  EXPECT_TRUE(scheduler.abort(RequestId{2}));
  EXPECT_FALSE(scheduler.abort(RequestId{2}));
  EXPECT_TRUE(apply(scheduler, plan).empty());
  EXPECT_EQ(scheduler.stats().free_blocks, 19);
  EXPECT_EQ(ids(scheduler.schedule(64).finished), (std::vector<uint64_t>{1, 2}));
}

TEST(Scheduler, LeavesBlocksFreeForThoseThatRun) {
  auto scheduler = make({.watermark = 0.3}, cache_of({full(4)}, 20));
  ASSERT_TRUE(scheduler.add(request(1, 40)));
  ASSERT_TRUE(scheduler.add(request(2, 20, 100)));
  EXPECT_EQ(scheduler.schedule(64).requests.size(), 1U);  // 10 blocks, 5 more, 6 to stay free: more than 19
}

TEST(Scheduler, AdmitsOnlyWhatFitsWholeIfAsked) {
  for (const bool whole : {false, true}) {
    auto scheduler = make({.reserve_whole_sequence = whole}, cache_of({full(4)}, 20));
    ASSERT_TRUE(scheduler.add(request(1, 40)));
    ASSERT_TRUE(scheduler.add(request(2, 44, 100)));
    EXPECT_EQ(scheduler.schedule(60).requests.size(), whole ? 1U : 2U);
  }
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
  auto scheduler = make({}, cache_of({full(4)}, 10, 64));
  const auto param = [&](RequestInit init) {
    const auto added = scheduler.add(std::move(init));
    return added ? std::string("accepted") : added.error().param;
  };
  EXPECT_EQ(param(request(1, 0)), "prompt");
  EXPECT_EQ(param(request(1, 64)), "prompt");
  RequestInit none = request(1, 4);
  none.max_tokens = -1;
  EXPECT_EQ(param(std::move(none)), "max_tokens");
  RequestInit too_long = request(1, 65);
  too_long.max_tokens = 0;
  EXPECT_EQ(param(std::move(too_long)), "prompt");
  EXPECT_EQ(param(request(1, 40)), "max_tokens");  // 14 blocks of 9
  EXPECT_EQ(param(request(1, 20)), "accepted");
  EXPECT_EQ(param(request(1, 20)), "id");
  RequestInit endless = request(2, 20);
  endless.max_tokens = INT64_MAX;
  EXPECT_EQ(param(std::move(endless)), "max_tokens");
}

TEST(Scheduler, SaysWhatIsWrongWithAConfiguration) {
  const auto param = [](SchedulerConfig config) {
    const auto made = Scheduler::create(config, cache_of({full(4)}, 10));
    return made ? std::string("accepted") : made.error().param;
  };
  EXPECT_EQ(param({}), "accepted");
  EXPECT_EQ(param({.max_num_seqs = 0}), "max_num_seqs");
  EXPECT_EQ(param({.long_prefill_threshold = -1}), "long_prefill_threshold");
  EXPECT_EQ(param({.num_draft_tokens = -1}), "num_draft_tokens");
  EXPECT_EQ(param({.num_lookahead_tokens = -1}), "num_lookahead_tokens");
  EXPECT_EQ(param({.watermark = 1.0}), "watermark");
  EXPECT_EQ(param({.hash_lookahead = -1}), "hash_lookahead");
  EXPECT_FALSE(Scheduler::create({}, cache_of({full(4)}, 0)));
}

// Drafts: all but the first are rejected, and the rejected positions are computed again.
TEST(Scheduler, TakesBackRejectedDrafts) {
  auto scheduler = make({.num_draft_tokens = 3, .num_lookahead_tokens = 3}, cache_of({full(4)}, 20));
  ASSERT_TRUE(scheduler.add(request(1, 6)));
  scheduler.set_drafts(RequestId{1}, std::vector<TokenId>{1});  // it waits: passed over
  run_step(scheduler);
  const std::vector<TokenId> drafts = {8, 9, 10};
  scheduler.set_drafts(RequestId{1}, drafts);
  const StepPlan plan = scheduler.schedule(64);
  EXPECT_EQ(plan.requests[0].num_new, 4);
  ASSERT_EQ(plan.requests[0].num_drafts, 3);
  EXPECT_TRUE(std::ranges::equal(plan.drafts_of(0), drafts));
  const std::vector<TokenId> tokens = {8, 20};
  const RequestOutput output{.id = RequestId{1}, .tokens = tokens};
  scheduler.apply(plan, {&output, 1});
  EXPECT_EQ(scheduler.find(RequestId{1})->num_computed, 8);
  EXPECT_EQ(scheduler.find(RequestId{1})->num_tokens(), 9);
  EXPECT_EQ(scheduler.schedule(64).requests[0].num_new, 1);
}

// A recurrent state is found where a step ended at a checkpoint: the prompt's last one gets a step of its own end.
TEST(Scheduler, EndsStepsAtCheckpointsOfRecurrentStates) {
  CacheSpec state = full(8);
  state.storage = cache::Storage::kState;
  state.retention = cache::RecurrentState{.checkpoints = cache::RecurrentState::Checkpoints::kAlign};
  auto scheduler = make({}, cache_of({full(8), state}, 60));
  ASSERT_TRUE(scheduler.add(request(1, 30)));
  StepPlan plan = scheduler.schedule(13);
  EXPECT_EQ(plan.requests[0].num_new, 8);
  apply(scheduler, plan);
  plan = scheduler.schedule(64);
  EXPECT_EQ(plan.requests[0].num_new, 16);
  apply(scheduler, plan);
  plan = scheduler.schedule(5);
  EXPECT_EQ(plan.requests[0].num_new, 5);
  apply(scheduler, plan);
  ASSERT_TRUE(scheduler.add(request(2, 30)));
  plan = scheduler.schedule(64);
  ASSERT_EQ(plan.requests.size(), 2U);
  EXPECT_EQ(plan.requests[1].num_cached, 24);
}

// Hits end at multiples of the largest block: states are kept there, not at every block of their own.
TEST(Scheduler, FindsStatesWhoseBlocksAreSmallerThanOthers) {
  CacheSpec state = full(8);
  state.storage = cache::Storage::kState;
  state.retention = cache::RecurrentState{.checkpoints = cache::RecurrentState::Checkpoints::kAlign};
  auto scheduler = make({}, cache_of({full(32), state}, 60));
  ASSERT_TRUE(scheduler.add(request(1, 50)));
  for (int step = 0; step < 3; ++step) run_step(scheduler);
  ASSERT_TRUE(scheduler.add(request(2, 50)));
  const StepPlan plan = scheduler.schedule(64);
  ASSERT_EQ(plan.requests.back().id, RequestId{2});
  EXPECT_EQ(plan.requests.back().num_cached, 32);
}

using Keep = cache::RetentionPolicy::Keep;

// Five groups of window layers to one of full ones, as Gemma 3 has them.
cache::CoordinatorConfig gemma_like(int64_t block, int64_t window, Keep keep, int64_t num_blocks) {
  CacheSpec windowed = full(block);
  windowed.retention = cache::SlidingWindow{.window = window};
  std::vector<CacheSpec> specs(5, windowed);
  specs.push_back(full(block));
  auto config = cache_of(specs, num_blocks, 8192);
  config.limits.max_in_flight_tokens = 2048;
  config.retention = {.keep = keep};
  return config;
}

// Runs all that is there to its end and returns how much of each request came from the cache, in the order of start.
std::vector<int64_t> run_all(Scheduler& scheduler, int64_t budget) {
  std::vector<int64_t> cached;
  while (scheduler.has_work()) {
    const StepPlan plan = scheduler.schedule(budget);
    for (const auto& planned : plan.requests) {
      if (planned.first) cached.push_back(planned.num_cached);
    }
    apply(scheduler, plan);
  }
  return cached;
}

// Conversations that go on in turn. Returns the share of earlier turns' tokens that was found again.
double share_found_again(Keep keep) {
  // A turn adds 80 tokens: 20 blocks of each group. The next turn needs all of the full group's, 2 of each window's.
  constexpr int64_t kUsers = 4;
  constexpr int64_t kTurns = 4;
  constexpr int64_t kAtWork = 80;  // for the request that runs
  auto scheduler = make({}, gemma_like(4, 9, keep, 1 + kUsers * (kTurns * 20 + 5 * kTurns * 2) + kAtWork));
  std::vector<std::vector<TokenId>> talk(kUsers);
  int64_t earlier = 0;
  int64_t found = 0;
  uint64_t next_id = 0;
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    for (size_t user = 0; user < talk.size(); ++user) {
      RequestInit init{.id = RequestId{next_id++}, .prompt = talk[user]};
      earlier += std::max<int64_t>(0, static_cast<int64_t>(talk[user].size()) - 1) / 4 * 4;
      for (int i = 0; i < 60; ++i) init.prompt.push_back(static_cast<TokenId>(user * 1000 + talk[user].size()));
      init.max_tokens = 20;
      talk[user] = init.prompt;
      talk[user].insert(talk[user].end(), 20, 7);
      EXPECT_TRUE(scheduler.add(std::move(init)));
      for (const int64_t cached : run_all(scheduler, 64)) found += cached;
    }
  }
  return static_cast<double>(found) / static_cast<double>(earlier);
}

// Window blocks that only the middle of a conversation needed must not outlive the tails that its next turn needs.
TEST(CacheFaults, WindowTailsOutliveBodies) {
  EXPECT_GE(share_found_again(Keep::kTurnEnds), 0.95);
  EXPECT_LT(share_found_again(Keep::kEveryBoundary), 0.6);
}

// 32 prompts that begin with the same 1,500 tokens and go on each in its own way, for 1 to 600 tokens.
std::vector<int64_t> cached_of_shared_prefix(Keep keep, int64_t num_blocks, bool together, int64_t budget) {
  auto scheduler = make({}, gemma_like(32, 512, keep, num_blocks));
  std::vector<int64_t> cached;
  for (uint64_t i = 0; i < 32; ++i) {
    RequestInit init = request(i, 1500);
    init.prompt.insert(init.prompt.end(), 1 + 37 * i % 600, static_cast<TokenId>(10000 + i));
    init.max_tokens = 40;
    EXPECT_TRUE(scheduler.add(std::move(init)));
    if (together) continue;
    for (const int64_t tokens : run_all(scheduler, budget)) cached.push_back(tokens);
  }
  return together ? run_all(scheduler, budget) : cached;
}

// No request knows that it shares its beginning with later ones; they find it all the same.
TEST(Scheduler, ASharedPrefixIsFoundFromTheSecondRequestOn) {
  constexpr int64_t kShared = 1500 / 32 * 32;
  for (const Keep keep : {Keep::kEveryBoundary, Keep::kTurnEnds}) {
    for (const bool together : {false, true}) {
      for (const int64_t budget : {2048, 300}) {
        const auto cached = cached_of_shared_prefix(keep, 20000, together, budget);
        ASSERT_EQ(cached.size(), 32U);
        EXPECT_EQ(cached[0], 0);
        for (size_t i = 1; i < cached.size(); ++i) {
          EXPECT_EQ(cached[i], kShared) << "request " << i << " together " << together << " budget " << budget;
        }
      }
    }
  }
}

// In a pool with room for one request and little more, the first request's window blocks at the end of the shared part
// may be gone when the second comes. That one recognises the junction and keeps it.
TEST(Scheduler, ASharedPrefixSurvivesAPoolThatHoldsHardlyMoreThanOneRequest) {
  constexpr int64_t kShared = 1500 / 32 * 32;
  // 2,139 tokens are 67 blocks of six groups; the shared part and its windows' tails are 46 and 5 * 16.
  const auto cached = cached_of_shared_prefix(Keep::kTurnEnds, 1 + 6 * 67 + 126 + 20, false, 2048);
  ASSERT_EQ(cached.size(), 32U);
  for (size_t i = 2; i < cached.size(); ++i) EXPECT_EQ(cached[i], kShared) << "request " << i;
}

// A prompt that just fits the pool by the window's bound must run to its end, not wait for ever.
TEST(CacheFaults, ALongPromptRunsInThePoolItWasSizedFor) {
  CacheSpec window = full(4);
  window.retention = cache::SlidingWindow{.window = 16};
  auto config = cache_of({window}, 100);
  config.limits.max_in_flight_tokens = 8;
  const int64_t bound = cache::max_blocks(window, 200, config.limits);
  EXPECT_LT(bound, 10);
  config.num_blocks = 1 + bound;
  auto scheduler = make({.reserve_whole_sequence = true}, config);
  RequestInit init = request(1, 180);
  init.max_tokens = 20;
  ASSERT_TRUE(scheduler.add(std::move(init)));
  for (int step = 0; step < 60 && scheduler.has_work(); ++step) run_step(scheduler);
  EXPECT_FALSE(scheduler.has_work());
}

// The least important request is preempted after it was planned for this step: it leaves the plan, and the block it
// would have filled in this step must not be found.
TEST(CacheFaults, APreemptedRequestsPlannedBlocksAreVoid) {
  auto scheduler = make({.policy = Policy::kPriority}, cache_of({full(4)}, 6));
  RequestInit minor = request(1, 6);
  minor.priority = 5;
  minor.max_tokens = 8;
  ASSERT_TRUE(scheduler.add(std::move(minor)));
  run_step(scheduler);
  RequestInit major = request(2, 12, 100);
  major.max_tokens = 8;
  ASSERT_TRUE(scheduler.add(std::move(major)));
  run_step(scheduler);
  EXPECT_EQ(scheduler.stats().free_blocks, 0);
  const StepPlan plan = scheduler.schedule(64);  // 1 fills its second block; 2 needs a fourth block
  ASSERT_EQ(ids(plan.preempted), (std::vector<uint64_t>{1}));
  ASSERT_EQ(plan.requests.size(), 1U);
  EXPECT_EQ(plan.requests[0].id, RequestId{2});
  EXPECT_EQ(plan.new_blocks(0, GroupId{0}).size(), 1U);
  EXPECT_EQ(plan.total_tokens, 1);
  apply(scheduler, plan);
  // Of 1's tokens only the first block was computed.
  EXPECT_LE(scheduler.cache().pool().index().size(), 1 + 3);
  const auto* preempted = scheduler.find(RequestId{1});
  EXPECT_LE(scheduler.cache().find_hit(preempted->hashes, 9).length, 4);
}

}  // namespace
}  // namespace quire::sched
