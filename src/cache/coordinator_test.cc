#include "cache/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace quire::cache {
namespace {

CacheSpec full(int64_t block) { return {.block_size = block, .state_bytes = 16}; }

CacheSpec window(int64_t block, int64_t size) {
  CacheSpec spec = full(block);
  spec.retention = SlidingWindow{.window = size};
  return spec;
}

CacheSpec recurrent(int64_t block) {
  CacheSpec spec = full(block);
  spec.storage = Storage::kState;
  spec.retention = RecurrentState{.checkpoints = RecurrentState::Checkpoints::kAlign};
  return spec;
}

CoordinatorConfig config_for(const std::vector<CacheSpec>& specs, int64_t num_blocks) {
  CoordinatorConfig config{.num_blocks = num_blocks, .max_model_len = 4096, .limits = {.max_in_flight_tokens = 2048}};
  for (const auto& spec : specs) config.groups.push_back({.spec = spec, .hit = hit_rule(spec, 1)});
  return config;
}

Coordinator coordinator_for(const std::vector<CacheSpec>& specs, int64_t num_blocks) {
  auto made = Coordinator::create(config_for(specs, num_blocks));
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// A request whose tokens are 0, 1, 2, ...; `from` makes later ones differ.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<BlockHash> hashes;
  RequestCache cache;

  Sequence(const Coordinator& coordinator, int64_t length, TokenId from = 0) : tokens(static_cast<size_t>(length)) {
    std::iota(tokens.begin(), tokens.end(), from);
    extend_hashes({.block_size = coordinator.hash_block()}, {}, tokens, hashes);
  }
  RequestTokens view() const {
    return {.hashes = hashes, .tokens = tokens, .num_prompt_tokens = static_cast<int64_t>(tokens.size())};
  }
  SlotRequest slots(int64_t computed, int64_t new_tokens) const {
    return {.tokens = view(), .computed = computed, .new_tokens = new_tokens};
  }
};

void expect_sound(const Coordinator& coordinator, std::initializer_list<const RequestCache*> caches) {
  const auto ok = coordinator.integrity(std::vector<const RequestCache*>(caches));
  EXPECT_TRUE(ok) << ok.error().message;
}

int64_t held(std::span<const BlockId> row) {
  return std::ranges::count_if(row, [](BlockId b) { return b != kNullBlock; });
}

// Whatever its block size: the state of every token lies in the first column.
TEST(Coordinator, AStateWithoutCheckpointsStaysInOneBlock) {
  CacheSpec state = recurrent(4);
  state.retention = RecurrentState{.speculative_blocks = 2};
  CoordinatorConfig config = config_for({state, full(4)}, 40);
  config.enable_caching = false;
  auto coordinator = *Coordinator::create(config);
  Sequence sequence(coordinator, 100);
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 3)));
  const auto row = coordinator.row(sequence.cache, GroupId{0});
  const std::vector<BlockId> first(row.begin(), row.end());
  EXPECT_EQ(first.size(), 3U);  // its own and those for drafts
  EXPECT_EQ(held(first), 3);
  for (int64_t computed = 3; computed < 99; computed += 12) {
    ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(computed, 12)));
    EXPECT_TRUE(std::ranges::equal(coordinator.row(sequence.cache, GroupId{0}), first));
    expect_sound(coordinator, {&sequence.cache});
  }
  EXPECT_EQ(coordinator.pool().free_count(), 39 - 3 - 25);
  coordinator.release(sequence.cache, 0);
  EXPECT_EQ(coordinator.pool().free_count(), 39);
}

TEST(Coordinator, GivesEveryGroupItsOwnRow) {
  auto coordinator = coordinator_for({full(4), window(8, 9)}, 20);
  Sequence sequence(coordinator, 20);
  NewBlocks added;
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 20), &added));
  EXPECT_EQ(coordinator.row(sequence.cache, GroupId{0}).size(), 5U);
  EXPECT_EQ(coordinator.row(sequence.cache, GroupId{1}).size(), 3U);
  EXPECT_EQ(added.ends, (std::vector<int32_t>{5, 8}));
  expect_sound(coordinator, {&sequence.cache});
  coordinator.release(sequence.cache, 20);
  EXPECT_EQ(coordinator.pool().free_count(), 19);
  expect_sound(coordinator, {&sequence.cache});
}

TEST(Coordinator, RefusesWithNothingAllocated) {
  auto coordinator = coordinator_for({full(4), full(4)}, 10);
  Sequence sequence(coordinator, 20);
  EXPECT_FALSE(coordinator.allocate(sequence.cache, sequence.slots(0, 20)));
  EXPECT_FALSE(sequence.cache.admitted());
  EXPECT_EQ(coordinator.pool().free_count(), 9);
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 16)));
  EXPECT_FALSE(coordinator.allocate(sequence.cache, sequence.slots(16, 4)));
  EXPECT_EQ(coordinator.row(sequence.cache, GroupId{0}).size(), 4U);
  expect_sound(coordinator, {&sequence.cache});
}

TEST(Coordinator, AWindowNeverHoldsMoreThanItsBound) {
  auto config = config_for({window(4, 9)}, 200);
  config.limits.max_in_flight_tokens = 6;
  auto coordinator = *Coordinator::create(config);
  const int64_t bound = max_blocks(config.groups[0].spec, 4096, config.limits);
  Sequence sequence(coordinator, 300);
  int64_t most = 0;
  for (int64_t computed = 0; computed + 6 <= 300; computed += 6) {
    ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(computed, 6)));
    most = std::max(most, held(coordinator.row(sequence.cache, GroupId{0})));
    expect_sound(coordinator, {&sequence.cache});
  }
  EXPECT_LE(most, bound);
  EXPECT_GE(most, bound - 1);
}

// Full and window groups over different blocks: what one request computed, the next one finds.
TEST(Coordinator, FindsWhatWasPublished) {
  auto coordinator = coordinator_for({full(16), window(4, 9)}, 100);
  Sequence first(coordinator, 70);
  ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(0, 70)));
  Sequence second(coordinator, 70);
  const auto hit = coordinator.find_hit(second.hashes, 69);
  EXPECT_EQ(hit.length, 64);
  auto slots = second.slots(0, 6);
  slots.hit = &hit;
  ASSERT_TRUE(coordinator.allocate(second.cache, slots));
  EXPECT_EQ(coordinator.row(second.cache, GroupId{0})[3], coordinator.row(first.cache, GroupId{0})[3]);
  EXPECT_EQ(coordinator.row(second.cache, GroupId{1})[13], kNullBlock);
  EXPECT_EQ(coordinator.row(second.cache, GroupId{1})[14], coordinator.row(first.cache, GroupId{1})[14]);
  EXPECT_EQ(coordinator.stats(GroupId{0}).hit_tokens, 64);
  EXPECT_EQ(coordinator.stats(GroupId{1}).hit_tokens, 8);  // the two blocks that the window still needs
  EXPECT_EQ(coordinator.stats(GroupId{1}).blocks.held, held(coordinator.row(first.cache, GroupId{1})) + 2);
  expect_sound(coordinator, {&first.cache, &second.cache});
  EXPECT_EQ(coordinator.find_hit(Sequence(coordinator, 70, 5).hashes, 69).length, 0);
}

TEST(Coordinator, PublishesNoMoreThanTheRequestsOwnTokens) {
  auto coordinator = coordinator_for({full(4)}, 100);
  Sequence sequence(coordinator, 9);
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 15)));  // six of them drafts
  EXPECT_EQ(coordinator.pool().index().size(), 2);
}

TEST(Coordinator, SparseRetentionKeepsOnlyWhatIsUsedAgain) {
  using Keep = RetentionPolicy::Keep;
  auto config = config_for({full(16), window(4, 9)}, 400);
  const auto published = [&](RetentionPolicy retention) {
    config.retention = retention;
    auto coordinator = *Coordinator::create(config);
    Sequence sequence(coordinator, 330);
    EXPECT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 330)));
    EXPECT_EQ(coordinator.find_hit(sequence.hashes, 329).length, 320);
    const auto row = coordinator.row(sequence.cache, GroupId{1});
    const auto demoted = std::ranges::count_if(row, [&](BlockId b) { return coordinator.pool().is_demoted(b); });
    return coordinator.pool().index().size() - 20 - demoted;  // without the full group's
  };
  EXPECT_EQ(published({}), 40);
  EXPECT_EQ(published({.keep = Keep::kKnownReuse}), 2);
  EXPECT_EQ(published({.keep = Keep::kTurnEnds}), 2);  // of the highest rank
  EXPECT_EQ(published({.keep = Keep::kEveryInterval, .interval_tokens = 64}), 10);
}

// While an answer grows, all that was written stays findable as long as there is room. When it gets short, what the
// latest boundary and the prompt's end do not need goes first.
TEST(Coordinator, TurnEndsOutliveWhatARequestHasPassed) {
  auto config = config_for({full(8), window(4, 17)}, 1 + 80);
  config.retention.keep = RetentionPolicy::Keep::kTurnEnds;
  auto coordinator = *Coordinator::create(config);
  Sequence sequence(coordinator, 200);
  auto slots = sequence.slots(0, 80);
  slots.tokens.num_prompt_tokens = 80;
  ASSERT_TRUE(coordinator.allocate(sequence.cache, slots));
  for (slots.computed = 80, slots.new_tokens = 1; slots.computed < 199; ++slots.computed) {
    ASSERT_TRUE(coordinator.allocate(sequence.cache, slots));
    for (const int64_t length : {slots.computed + 1, slots.computed / 2, int64_t{79}}) {
      EXPECT_EQ(coordinator.find_hit(sequence.hashes, length).length, length / 8 * 8);
    }
    expect_sound(coordinator, {&sequence.cache});
  }
  coordinator.release(sequence.cache, 199);
  // Of 48 published window blocks 4 serve the prompt's end and 4 the last boundary; 8 blocks are not published.
  Sequence other(coordinator, 128, 1000);
  ASSERT_TRUE(coordinator.allocate(other.cache, other.slots(0, 128)));  // 16 and 32 blocks
  EXPECT_EQ(coordinator.pool().of_group(GroupId{1}).evictions, 40);
  EXPECT_EQ(coordinator.pool().of_group(GroupId{0}).evictions, 0);
  EXPECT_EQ(coordinator.find_hit(sequence.hashes, 199).length, 192);
  EXPECT_EQ(coordinator.find_hit(sequence.hashes, 150).length, 72);
  expect_sound(coordinator, {&sequence.cache, &other.cache});
}

TEST(Coordinator, TurnEndsLeaveAloneWhatOthersHold) {
  auto config = config_for({window(4, 9)}, 400);
  config.retention.keep = RetentionPolicy::Keep::kTurnEnds;
  auto coordinator = *Coordinator::create(config);
  Sequence first(coordinator, 100);
  auto slots = first.slots(0, 40);
  slots.tokens.num_prompt_tokens = 20;
  ASSERT_TRUE(coordinator.allocate(first.cache, slots));
  Sequence second(coordinator, 41);
  const auto hit = coordinator.find_hit(second.hashes, 40);
  ASSERT_EQ(hit.length, 40);
  auto follow = second.slots(0, 1);
  follow.hit = &hit;
  ASSERT_TRUE(coordinator.allocate(second.cache, follow));
  slots.computed = 40;
  ASSERT_TRUE(coordinator.allocate(first.cache, slots));
  int64_t shared = 0;
  for (const BlockId block : coordinator.row(second.cache, GroupId{0})) {
    if (block == kNullBlock) continue;
    EXPECT_FALSE(coordinator.pool().is_demoted(block));
    shared += coordinator.pool().ref_count(block) == 2 ? 1 : 0;
  }
  EXPECT_EQ(shared, 2);
  EXPECT_TRUE(coordinator.pool().is_demoted(coordinator.row(first.cache, GroupId{0})[12]));
  expect_sound(coordinator, {&first.cache, &second.cache});
}

// A hit may end inside a block: the request writes into a copy, and both ends stay until the copy has run.
TEST(Coordinator, CopiesASharedTailBeforeItIsWritten) {
  auto coordinator = coordinator_for({full(16), recurrent(16)}, 40);
  EXPECT_EQ(coordinator.hash_block(), 16);
  auto config = config_for({full(16), recurrent(16)}, 40);
  config.hash_block = 4;
  coordinator = *Coordinator::create(config);
  ASSERT_TRUE(coordinator.hits_end_inside_blocks());
  Sequence first(coordinator, 24);
  ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(0, 24)));

  coordinator.begin_step();
  Sequence second(coordinator, 30);
  const auto hit = coordinator.find_hit(second.hashes, 29);
  ASSERT_EQ(hit.length, 24);
  auto slots = second.slots(0, 6);
  slots.hit = &hit;
  ASSERT_TRUE(coordinator.allocate(second.cache, slots));
  ASSERT_EQ(coordinator.pending_copies().size(), 2U);
  for (const auto& copy : coordinator.pending_copies()) {
    EXPECT_EQ(copy.source, coordinator.row(first.cache, copy.group)[1]);
    EXPECT_EQ(copy.target, coordinator.row(second.cache, copy.group)[1]);
    EXPECT_EQ(coordinator.pool().ref_count(copy.source), 2);
  }
  const BlockId source = coordinator.pending_copies()[0].source;
  coordinator.release(first.cache, 24);
  expect_sound(coordinator, {&first.cache, &second.cache});
  EXPECT_FALSE(coordinator.pool().is_free(source));
  coordinator.copies_done(2);
  EXPECT_TRUE(coordinator.pool().is_free(source));
  expect_sound(coordinator, {&first.cache, &second.cache});
}

TEST(Coordinator, AStateWrittenInThisStepIsForTheNext) {
  auto coordinator = coordinator_for({recurrent(8)}, 40);
  coordinator.begin_step();
  Sequence first(coordinator, 8);
  ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(0, 8)));
  Sequence second(coordinator, 12);
  const auto hit = coordinator.find_hit(second.hashes, 11);
  ASSERT_EQ(hit.length, 8);
  auto slots = second.slots(0, 4);
  slots.hit = &hit;
  EXPECT_FALSE(coordinator.allocate(second.cache, slots));
  coordinator.begin_step();
  EXPECT_TRUE(coordinator.allocate(second.cache, slots));
}

// Every field of every event; that a follower knows the index is a property of all streams of requests
// (SchedulerOracle).
TEST(Coordinator, TellsWhatBecomesFindableAndWhatIsGone) {
  auto coordinator = coordinator_for({full(4), window(8, 9)}, 12);
  std::vector<CacheEvent> events;
  coordinator.subscribe([&](const CacheEvent& event) { events.push_back(event); });
  Sequence first(coordinator, 20);
  const HashKeys keys{.adapter = AdapterKey{.name = "tune"}, .media = {{"image", 6, 4}}, .cache_salt = "salt"};
  auto slots = first.slots(0, 8);
  slots.tokens.keys = &keys;
  ASSERT_TRUE(coordinator.allocate(first.cache, slots));
  slots.computed = 8;
  ASSERT_TRUE(coordinator.allocate(first.cache, slots));
  ASSERT_EQ(events.size(), 4U);
  const auto& start = std::get<StoredEvent>(events[0]);
  EXPECT_EQ(start.group, GroupId{0});
  EXPECT_FALSE(start.parent);
  EXPECT_EQ(start.hashes, (std::vector<BlockHash>{first.hashes[0], first.hashes[1]}));
  EXPECT_EQ(start.tokens, (std::vector<TokenId>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(start.block_size, 4);
  EXPECT_EQ(start.adapter, "tune");
  EXPECT_EQ(start.medium, "CPU");
  const auto extra = [&](size_t block) {
    std::vector<std::pair<std::string, std::optional<int64_t>>> list;
    for (const EventKey& key : start.extra_keys.at(block)) list.emplace_back(key.text, key.offset);
    return list;
  };
  using Extra = decltype(extra(0));
  EXPECT_EQ(start.extra_keys.size(), 2U);
  EXPECT_EQ(extra(0), (Extra{{"tune", std::nullopt}, {"salt", std::nullopt}}));
  EXPECT_EQ(extra(1), (Extra{{"tune", std::nullopt}, {"image", 2}}));
  EXPECT_EQ(start.spec_kind, "full");
  EXPECT_EQ(start.window, 0);
  const auto& next = std::get<StoredEvent>(events[3]);
  EXPECT_EQ(next.group, GroupId{1});
  EXPECT_EQ(next.parent, first.hashes[1]);
  EXPECT_EQ(next.hashes, (std::vector<BlockHash>{first.hashes[3]}));
  EXPECT_EQ(next.tokens, (std::vector<TokenId>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(next.block_size, 8);
  EXPECT_EQ(next.spec_kind, "sliding window");
  EXPECT_EQ(next.window, 9);

  events.clear();
  coordinator.release(first.cache, 16);
  Sequence other(coordinator, 32, 100);
  ASSERT_TRUE(coordinator.allocate(other.cache, other.slots(0, 28)));  // 11 blocks: all that are there
  std::set<std::pair<GroupId, BlockHash>> gone;
  for (const auto& event : events) {
    const auto* removed = std::get_if<RemovedEvent>(&event);
    if (removed == nullptr) continue;
    EXPECT_EQ(removed->medium, "CPU");
    for (const BlockHash& hash : removed->hashes) EXPECT_TRUE(gone.insert({removed->group, hash}).second);
  }
  std::set<std::pair<GroupId, BlockHash>> stored;
  for (const size_t i : {0U, 1U, 2U, 3U}) stored.insert({GroupId{0}, first.hashes[i]});
  for (const size_t i : {1U, 3U}) stored.insert({GroupId{1}, first.hashes[i]});
  EXPECT_EQ(gone, stored);
  coordinator.forget_prefixes();
  EXPECT_TRUE(std::holds_alternative<AllClearedEvent>(events.back()));
  EXPECT_EQ(coordinator.find_hit(other.hashes, 31).length, 0);
  expect_sound(coordinator, {&other.cache});
}

TEST(Coordinator, SaysWhatIsWrongWithAConfiguration) {
  const auto message = [](CoordinatorConfig config) {
    const auto made = Coordinator::create(std::move(config));
    return made ? std::string("accepted") : made.error().param;
  };
  EXPECT_EQ(message(config_for({full(4)}, 0)), "num_blocks");
  auto config = config_for({full(4)}, 10);
  config.max_model_len = 0;
  EXPECT_EQ(message(config), "max_model_len");
  config = config_for({full(4)}, 10);
  config.limits.max_in_flight_tokens = 0;
  EXPECT_EQ(message(config), "max_in_flight_tokens");
  config = config_for({full(4)}, 10);
  config.limits.context_parallel_size = 0;
  EXPECT_EQ(message(config), "context_parallel_size");
  config = config_for({full(4)}, 10);
  config.hash_block = 3;
  EXPECT_EQ(message(config), "hash_block");
  config = config_for({full(4), full(6)}, 10);
  config.scheduler_block = 6;
  EXPECT_EQ(message(config), "block_size");
  config = config_for({full(4), window(4, 8)}, 10);
  config.retention = {.keep = RetentionPolicy::Keep::kEveryInterval, .interval_tokens = 6};
  EXPECT_EQ(message(config), "retention_interval");
  CacheSpec state = recurrent(8);
  state.retention = RecurrentState{};
  EXPECT_EQ(message(config_for({full(8), state}, 10)), "enable_prefix_caching");
  CacheSpec chunked = full(4);
  chunked.retention = ChunkedLocal{.chunk = 8};
  EXPECT_EQ(message(config_for({full(8), chunked}, 10)), "enable_prefix_caching");
  CacheSpec compressed = full(8);
  compressed.tokens_per_state = 8;
  config = config_for({compressed, recurrent(16)}, 10);
  config.hash_block = 4;
  EXPECT_EQ(message(config), "tokens_per_state");
}

// --- Faults seen elsewhere (cache.md, section 6) ---

// Group 0 holds all of its hit and needs a new block; the next free one is the window's hit in group 1, as nothing is
// unpublished and a request's last blocks go first.
TEST(CacheFaults, OneGroupsBlocksDoNotEvictAnothersHit) {
  auto coordinator = coordinator_for({full(4), window(4, 5)}, 13);
  Sequence first(coordinator, 24);
  ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(0, 24)));
  coordinator.release(first.cache, 24);

  Sequence second(coordinator, 25);
  const auto hit = coordinator.find_hit(second.hashes, 24);
  ASSERT_EQ(hit.length, 24);
  const std::set<BlockId> hits(hit.rows[0].begin(), hit.rows[0].end());
  const auto others = coordinator.pool().free_list();
  ASSERT_EQ(*std::ranges::find_if(others, [&](BlockId b) { return !hits.contains(b); }), hit.rows[1].back());

  auto slots = second.slots(0, 1);
  slots.hit = &hit;
  ASSERT_TRUE(coordinator.allocate(second.cache, slots));
  for (const int32_t group : {0, 1}) {
    const auto row = coordinator.row(second.cache, GroupId{group});
    for (size_t column = 0; column < 6; ++column) {
      const BlockId block = hit.rows[static_cast<size_t>(group)][column];
      EXPECT_EQ(row[column], block);
      if (block == kNullBlock) continue;
      EXPECT_EQ(coordinator.pool().ref_count(block), 1);
      EXPECT_TRUE(coordinator.pool().index().is_published(block));
    }
  }
  expect_sound(coordinator, {&second.cache});
}

TEST(CacheFaults, WriteMaskAndReadGateAgree) {
  auto coordinator = coordinator_for({full(256), window(64, 128)}, 200);
  EXPECT_EQ(coordinator.hit_alignment(), 256);
  Sequence first(coordinator, 1100);
  for (int64_t computed = 0; computed < 1100; computed += 220) {
    ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(computed, 220)));
  }
  coordinator.release(first.cache, 1100);
  for (const int64_t length : {300, 600, 1000, 1100}) {
    Sequence again(coordinator, length);
    EXPECT_EQ(coordinator.find_hit(again.hashes, length - 1).length, (length - 1) / 256 * 256);
  }
}

TEST(CacheFaults, WindowBlocksStayWhileStepsInFlightReadThem) {
  auto coordinator = coordinator_for({window(4, 5)}, 40);
  Sequence sequence(coordinator, 40);
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 16)));
  auto next = sequence.slots(16, 4);
  next.in_flight = 16;  // the first step has not been processed
  ASSERT_TRUE(coordinator.allocate(sequence.cache, next));
  EXPECT_EQ(held(coordinator.row(sequence.cache, GroupId{0})), 5);
  next = sequence.slots(20, 4);
  next.in_flight = 4;
  ASSERT_TRUE(coordinator.allocate(sequence.cache, next));
  EXPECT_EQ(held(coordinator.row(sequence.cache, GroupId{0})), 3);
}

TEST(CacheFaults, ABlockHandedOutAgainIsNotFound) {
  auto coordinator = coordinator_for({full(4)}, 5);
  Sequence first(coordinator, 16);
  ASSERT_TRUE(coordinator.allocate(first.cache, first.slots(0, 16)));
  coordinator.release(first.cache, 16);
  EXPECT_EQ(coordinator.find_hit(first.hashes, 15).length, 12);
  Sequence other(coordinator, 8, 100);
  ASSERT_TRUE(coordinator.allocate(other.cache, other.slots(0, 8)));
  EXPECT_EQ(coordinator.find_hit(first.hashes, 15).length, 8);  // the last blocks went first
  Sequence more(coordinator, 8, 200);
  ASSERT_TRUE(coordinator.allocate(more.cache, more.slots(0, 8)));
  EXPECT_EQ(coordinator.find_hit(first.hashes, 15).length, 0);
  expect_sound(coordinator, {&other.cache, &more.cache});
}

TEST(CacheFaults, AVoidStepLeavesNothingToFind) {
  auto coordinator = coordinator_for({full(4)}, 20);
  Sequence sequence(coordinator, 16);
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(0, 8)));
  ASSERT_TRUE(coordinator.allocate(sequence.cache, sequence.slots(8, 8)));
  std::vector<BlockHash> gone;
  coordinator.subscribe([&](const CacheEvent& event) {
    const auto& hashes = std::get<RemovedEvent>(event).hashes;
    gone.insert(gone.end(), hashes.begin(), hashes.end());
  });
  coordinator.release(sequence.cache, 8);  // the second step will not run
  EXPECT_EQ(gone, (std::vector<BlockHash>{sequence.hashes[3], sequence.hashes[2]}));
  EXPECT_EQ(coordinator.find_hit(sequence.hashes, 15).length, 8);
}

}  // namespace
}  // namespace quire::cache
