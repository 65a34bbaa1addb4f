#include <gtest/gtest.h>

#include <numeric>

#include "cache/coordinator.h"

namespace quire::cache {
namespace {

using Keep = RetentionPolicy::Keep;

CacheSpec full(int64_t block) { return {.block_size = block, .state_bytes = 16}; }

CacheSpec window(int64_t block, int64_t size) {
  CacheSpec spec = full(block);
  spec.retention = SlidingWindow{.window = size};
  return spec;
}

Coordinator coordinator_for(const std::vector<CacheSpec>& specs, int64_t num_blocks, Keep keep = Keep::kTurnEnds,
                            int64_t remembered = 1000) {
  CoordinatorConfig config{.num_blocks = num_blocks,
                           .max_model_len = 4096,
                           .limits = {.max_in_flight_tokens = 2048},
                           .retention = {.keep = keep},
                           .remembered_evictions = remembered};
  for (const auto& spec : specs) config.groups.push_back({.spec = spec, .hit = hit_rule(spec, 1)});
  auto made = Coordinator::create(std::move(config));
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// A request for tokens from, from + 1, ...
struct Asker {
  std::vector<TokenId> tokens;
  std::vector<BlockHash> hashes;
  HashKeys keys;
  RequestCache cache;

  Asker(const Coordinator& coordinator, int64_t length, TokenId from = 0, HashKeys own = {})
      : tokens(static_cast<size_t>(length)), keys(std::move(own)) {
    std::iota(tokens.begin(), tokens.end(), from);
    extend_hashes({.block_size = coordinator.hash_block()}, keys, tokens, hashes);
  }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  RequestTokens view() const {
    return {.hashes = hashes, .tokens = tokens, .keys = &keys, .num_prompt_tokens = size()};
  }
  CacheReport report(const Coordinator& coordinator) const {
    const PrefixHit hit = coordinator.find_hit(hashes, size() - 1);
    return coordinator.report({.tokens = view(), .hit = &hit});
  }
  // Computes everything in one step, and ends.
  void run(Coordinator& coordinator) {
    const PrefixHit hit = coordinator.find_hit(hashes, size() - 1);
    ASSERT_TRUE(coordinator.allocate(cache, {.tokens = view(), .hit = &hit, .new_tokens = size() - hit.length}));
    coordinator.release(cache, size());
  }
};

// Hit and misses must make up the whole prompt, without a gap.
void expect_whole(const CacheReport& report, int64_t num_tokens) {
  for (const GroupReport& group : report.groups) {
    int64_t at = group.hit_tokens;
    for (const CacheMiss& miss : group.misses) {
      EXPECT_EQ(miss.from, at);
      EXPECT_LT(miss.from, miss.to);
      at = miss.to;
    }
    EXPECT_EQ(at, num_tokens);
  }
}

using Misses = std::vector<CacheMiss>;

TEST(HitReport, TellsWhatWasNeverSeenAndWhatIsTooShort) {
  auto coordinator = coordinator_for({full(16), window(16, 40)}, 100);
  const Asker first(coordinator, 50);
  const CacheReport report = first.report(coordinator);
  expect_whole(report, 50);
  EXPECT_EQ(report.minimum_reuse_tokens, 16);
  ASSERT_EQ(report.groups.size(), 2U);
  EXPECT_EQ(report.groups[1].group, 1);
  EXPECT_EQ(report.groups[0].kind, "full");
  EXPECT_EQ(report.groups[1].kind, "sliding window");
  for (const GroupReport& group : report.groups) {
    EXPECT_EQ(group.hit_tokens, 0);
    EXPECT_EQ(group.misses, (Misses{{0, 48, MissReason::kNeverSeen}, {48, 50, MissReason::kBelowMinimum}}));
  }
  // 16 tokens are one block, but the last one must be computed.
  EXPECT_EQ(Asker(coordinator, 16).report(coordinator).groups[0].misses, (Misses{{0, 16, MissReason::kBelowMinimum}}));
}

TEST(HitReport, TellsHowFarAPrefixWasHit) {
  auto coordinator = coordinator_for({full(16), window(16, 40)}, 100);
  Asker(coordinator, 70).run(coordinator);
  Asker longer(coordinator, 200);
  const CacheReport report = longer.report(coordinator);
  expect_whole(report, 200);
  for (const GroupReport& group : report.groups) {
    EXPECT_EQ(group.hit_tokens, 64);
    EXPECT_EQ(group.misses, (Misses{{64, 192, MissReason::kNeverSeen}, {192, 200, MissReason::kBelowMinimum}}));
  }
}

// The window lost its last two blocks. The full group has them, and they are of no use.
TEST(HitReport, TellsWhatWasEvictedWhenAndWhatThatMadeUseless) {
  auto coordinator = coordinator_for({window(16, 40), full(16)}, 1 + 20, Keep::kEveryBoundary);
  coordinator.begin_step(100.0);
  Asker(coordinator, 129).run(coordinator);  // 9 of each: 8 published, the last of each is not
  coordinator.begin_step(103.5);
  Asker(coordinator, 40, 5000).run(coordinator);  // takes 6: 4 were free and bare, 2 are the window's last
  coordinator.begin_step(110.0);
  const Asker again(coordinator, 129);
  const CacheReport report = again.report(coordinator);
  expect_whole(report, 129);
  // Without its last two blocks the window's run ends at block 6.
  EXPECT_EQ(report.groups[0].hit_tokens, 96);
  EXPECT_EQ(report.groups[0].misses,
            (Misses{{96, 128, MissReason::kEvicted, 6.5}, {128, 129, MissReason::kBelowMinimum}}));
  EXPECT_EQ(report.groups[1].misses, (Misses{{96, 128, MissReason::kUnused}, {128, 129, MissReason::kBelowMinimum}}));
}

// In the middle of an answer nothing of the window is kept once room is short; at its end and at the prompt's end it
// is.
TEST(HitReport, TellsWhereAWindowWasNotRetained) {
  auto coordinator = coordinator_for({full(16), window(16, 40)}, 1 + 60);
  Asker first(coordinator, 400);
  const RequestTokens view{.hashes = first.hashes, .tokens = first.tokens, .num_prompt_tokens = 400};
  ASSERT_TRUE(coordinator.allocate(first.cache, {.tokens = view, .new_tokens = 200}));
  ASSERT_TRUE(coordinator.allocate(first.cache, {.tokens = view, .computed = 200, .new_tokens = 200}));
  coordinator.release(first.cache, 400);
  Asker(coordinator, 240, 5000).run(coordinator);  // 30 blocks: 10 bare ones, then demoted ones
  Asker shorter(coordinator, 201);
  const CacheReport report = shorter.report(coordinator);
  expect_whole(report, 201);
  EXPECT_EQ(report.groups[0].hit_tokens, 0);
  EXPECT_EQ(report.groups[0].misses, (Misses{{0, 192, MissReason::kUnused}, {192, 201, MissReason::kBelowMinimum}}));
  ASSERT_EQ(report.groups[1].misses.size(), 2U);
  EXPECT_EQ(report.groups[1].misses[0].to, 192);
  EXPECT_EQ(report.groups[1].misses[0].reason, MissReason::kNotRetained);
  // Where it ended, and where the same prompt would be found again, all is there.
  EXPECT_EQ(Asker(coordinator, 401).report(coordinator).groups[1].hit_tokens, 400);
  EXPECT_EQ(Asker(coordinator, 400).report(coordinator).groups[1].hit_tokens, 384);
}

// A policy that never publishes what lies inside a request: no eviction is needed for it to be missing.
TEST(HitReport, TellsWhatAPolicyNeverKept) {
  auto coordinator = coordinator_for({full(16), window(16, 40)}, 100, Keep::kKnownReuse);
  Asker(coordinator, 400).run(coordinator);
  const CacheReport report = Asker(coordinator, 201).report(coordinator);
  EXPECT_EQ(report.groups[1].misses[0], (CacheMiss{0, 192, MissReason::kNotRetained}));
  EXPECT_EQ(report.groups[0].misses[0], (CacheMiss{0, 192, MissReason::kUnused}));
}

TEST(HitReport, OwnsUpWhenItsMemoryIsTooShort) {
  for (const int64_t remembered : {0, 1}) {
    auto coordinator = coordinator_for({full(16)}, 1 + 4, Keep::kTurnEnds, remembered);
    Asker(coordinator, 64).run(coordinator);
    Asker(coordinator, 64, 5000).run(coordinator);  // evicts four
    const CacheReport report = Asker(coordinator, 65).report(coordinator);
    expect_whole(report, 65);
    // The block evicted last was the first of the prefix.
    const auto& misses = report.groups[0].misses;
    EXPECT_EQ(misses[0].reason, remembered == 1 ? MissReason::kEvicted : MissReason::kUnknown);
    EXPECT_EQ(misses[0].to, remembered == 1 ? 16 : 64);
    EXPECT_EQ(misses[static_cast<size_t>(remembered)].reason, MissReason::kUnknown);
  }
  auto coordinator = coordinator_for({full(16)}, 100);
  Asker(coordinator, 64).run(coordinator);
  coordinator.forget_prefixes();
  EXPECT_EQ(Asker(coordinator, 65).report(coordinator).groups[0].misses[0].reason, MissReason::kUnknown);
}

// Whoever asks under a salt learns of that salt alone; without one, of what was asked without one.
TEST(HitReport, NeverTellsWhatIsUnderOtherKeys) {
  auto coordinator = coordinator_for({full(16)}, 1 + 8);
  const auto reason = [&](const HashKeys& keys) {
    return Asker(coordinator, 65, 0, keys).report(coordinator).groups[0].misses[0].reason;
  };
  const HashKeys salted{.cache_salt = "theirs"};
  const HashKeys other{.cache_salt = "ours"};
  EXPECT_EQ(reason(other), MissReason::kOtherKeys);
  EXPECT_EQ(reason({}), MissReason::kNeverSeen);
  Asker(coordinator, 65, 0, salted).run(coordinator);
  EXPECT_EQ(reason(salted), MissReason::kBelowMinimum);  // all else is a hit
  EXPECT_EQ(reason(other), MissReason::kOtherKeys);      // as before
  EXPECT_EQ(reason({}), MissReason::kNeverSeen);
  Asker(coordinator, 128, 5000).run(coordinator);  // evicts it all
  EXPECT_EQ(reason(salted), MissReason::kEvicted);
  EXPECT_EQ(reason(other), MissReason::kOtherKeys);
  EXPECT_EQ(reason({}), MissReason::kNeverSeen);
  EXPECT_EQ(reason({.adapter = AdapterKey{.name = "a"}}), MissReason::kOtherKeys);
}

TEST(HitReport, TellsWhenNothingWasLookedUp) {
  auto coordinator = coordinator_for({full(16)}, 100);
  Asker first(coordinator, 64);
  first.run(coordinator);
  const CacheReport report = coordinator.report({.tokens = first.view()});
  expect_whole(report, 64);
  EXPECT_EQ(report.groups[0].misses, (Misses{{0, 64, MissReason::kNotLookedUp}}));
}

}  // namespace
}  // namespace quire::cache
