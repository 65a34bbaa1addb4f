#include "cache/spec.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace quire::cache {
namespace {

CacheSpec with(Retention retention, int64_t block_size = 4) {
  return {.retention = retention, .block_size = block_size, .state_bytes = 8};
}

// Whether the token at `position` reads the state of token `t`.
bool reads(const Retention& retention, int64_t position, int64_t t) {
  if (t > position) return false;
  if (const auto* window = std::get_if<SlidingWindow>(&retention)) return t > position - window->window;
  if (const auto* local = std::get_if<ChunkedLocal>(&retention)) return t / local->chunk == position / local->chunk;
  return true;
}

Retention random_token_retention() {
  switch (*rc::gen::inRange(0, 3)) {
    case 0:
      return FullRetention{};
    case 1:
      return SlidingWindow{.window = *rc::gen::inRange<int64_t>(1, 30)};
    default:
      return ChunkedLocal{.chunk = 4 * *rc::gen::inRange<int64_t>(1, 7)};
  }
}

TEST(CacheSpec, SkippedTokensAreExactlyThoseNoLaterTokenReads) {
  EXPECT_TRUE(rc::check([] {
    const Retention retention = random_token_retention();
    const auto processed = *rc::gen::inRange<int64_t>(0, 100);
    int64_t unread = 0;
    const auto read_later = [&](int64_t t) {
      for (int64_t p = processed; p < processed + 200; ++p) {
        if (reads(retention, p, t)) return true;
      }
      return false;
    };
    while (unread < processed && !read_later(unread)) ++unread;
    RC_ASSERT(skipped_tokens(with(retention), processed) == unread);
  }));
}

TEST(CacheSpec, SkippedTokensKeepTheRollBackOfDrafts) {
  EXPECT_EQ(skipped_tokens(with(SlidingWindow{.window = 8, .extra_retained = 3}), 20), 10);
  EXPECT_EQ(skipped_tokens(with(SlidingWindow{.window = 8, .extra_retained = 3}), 9), 0);
  EXPECT_EQ(skipped_tokens(with(CircularBuffer{}), 1000), 0);
  const RecurrentState checkpoints{.checkpoints = RecurrentState::Checkpoints::kAlign};
  EXPECT_EQ(skipped_tokens(with(checkpoints), 1000), 999);
  EXPECT_EQ(skipped_tokens(with(checkpoints), 0), 0);
  EXPECT_EQ(skipped_tokens(with(RecurrentState{}), 1000), 0);  // its one block stays
}

// No request ever holds more blocks than the bound, and some request comes within one of it.
TEST(CacheSpec, BlockBoundCoversEveryMomentOfARequest) {
  EXPECT_TRUE(rc::check([] {
    const CacheSpec spec = with(random_token_retention());
    const auto length = *rc::gen::inRange<int64_t>(1, 80);
    const auto in_flight = *rc::gen::inRange<int64_t>(1, 40);
    int64_t most = 0;
    for (int64_t processed = 0; processed < length; ++processed) {
      const int64_t end = std::min(length, processed + in_flight);
      const int64_t first_block = skipped_tokens(spec, processed) / spec.block_size;
      most = std::max(most, ceil_div(end, spec.block_size) - first_block);
    }
    const int64_t bound = max_blocks(spec, length, {.max_in_flight_tokens = in_flight});
    RC_ASSERT(most <= bound);
    RC_ASSERT(bound - most <= 1);
  }));
}

TEST(CacheSpec, BlockBoundsOfStates) {
  const CacheLimits limits{.max_in_flight_tokens = 100};
  EXPECT_EQ(max_blocks(with(CircularBuffer{}), 1000, limits), 1);
  EXPECT_EQ(table_columns(with(CircularBuffer{}), 1000, limits), 1);
  EXPECT_EQ(max_blocks(with(RecurrentState{}), 1000, limits), 1);
  EXPECT_EQ(table_columns(with(RecurrentState{.speculative_blocks = 3}), int64_t{1} << 24, limits), 4);
  const RecurrentState aligned{.checkpoints = RecurrentState::Checkpoints::kAlign, .speculative_blocks = 3};
  EXPECT_EQ(max_blocks(with(aligned), 1000, limits), 5);
  EXPECT_EQ(table_columns(with(aligned), 1000, limits), 253);
  CacheSpec replicated = with(FullRetention{});
  EXPECT_EQ(max_blocks(replicated, 64, {.context_parallel_size = 2}), 8);
  replicated.context_parallel_sharded = false;
  EXPECT_EQ(max_blocks(replicated, 64, {.context_parallel_size = 2}), 16);
}

TEST(CacheSpec, HitRules) {
  using Search = HitRule::Search;
  EXPECT_EQ(hit_rule(with(FullRetention{}), 1).search, Search::kForward);
  EXPECT_EQ(hit_rule(with(ChunkedLocal{.chunk = 8}), 1).search, Search::kForwardFromChunk);
  EXPECT_EQ(hit_rule(with(RecurrentState{}), 1).search, Search::kBackwardSingle);
  EXPECT_EQ(hit_rule(with(CircularBuffer{}), 1).search, Search::kNever);
  const HitRule window = hit_rule(with(SlidingWindow{.window = 10}), 1);
  EXPECT_EQ(window.search, Search::kBackward);
  EXPECT_EQ(window.contiguous_blocks, 3);  // 9 tokens before the next one
  EXPECT_EQ(hit_rule(with(SlidingWindow{.window = 10}), 2).contiguous_blocks, 2);
  CacheSpec unpublished = with(FullRetention{});
  unpublished.prefix_cacheable = false;
  EXPECT_EQ(hit_rule(unpublished, 1).search, Search::kNever);
}

// Tokens are written to a ring by position, `drafts` of them drafted and any number of those rejected. Whenever a pool
// is complete it is read, drafts and all: all of its rows must be its own, and those of the pool that stays open must
// be there after every rejection. True if they are for every start and every rejection.
bool ring_serves(int64_t capacity, int64_t pooled, int64_t drafts) {
  std::vector<int64_t> ring(static_cast<size_t>(capacity), -1);
  const auto row = [&](int64_t position) -> int64_t& { return ring[static_cast<size_t>(position % capacity)]; };
  std::mt19937 random(1);
  int64_t committed = 0;
  for (int step = 0; step < 300; ++step) {
    const int64_t end = committed + 1 + drafts;
    for (int64_t p = committed; p < end; ++p) row(p) = p;
    for (int64_t p = committed / pooled * pooled; p < end; ++p) {
      if (row(p) != p) return false;
    }
    committed += 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(drafts + 1));
  }
  return true;
}

TEST(CacheFaults, RejectedDraftsLeaveARingsRowsAlone) {
  for (const auto& [drafts, rows] : std::map<int64_t, int64_t>{{0, 4}, {1, 8}, {4, 8}, {5, 16}, {12, 16}, {13, 32}}) {
    EXPECT_EQ(ring_capacity(4, drafts), rows);
  }
  for (const int64_t pooled : {1, 2, 3, 4, 8, 64}) {
    for (int64_t drafts = 0; drafts <= 20; ++drafts) {
      EXPECT_TRUE(ring_serves(ring_capacity(pooled, drafts), pooled, drafts)) << pooled << " " << drafts;
    }
    EXPECT_FALSE(ring_serves(pooled, pooled, 1)) << pooled;  // a ring of one pool
  }
}

TEST(CacheSpec, EqualityIgnoresDrafts) {
  CacheSpec a = with(FullRetention{});
  CacheSpec b = a;
  b.is_draft = true;
  EXPECT_EQ(a, b);
  b.retention = FullRetention{.mask_window = 128};
  EXPECT_NE(a, b);
  EXPECT_TRUE(mergeable(a, b));
  b.num_kv_heads = 2;
  EXPECT_FALSE(mergeable(a, b));
  EXPECT_TRUE(same_uniform_type(a, b));
  b.block_size = 8;
  EXPECT_FALSE(same_uniform_type(a, b));
  EXPECT_FALSE(same_uniform_type(with(SlidingWindow{.window = 4}), with(SlidingWindow{.window = 8})));
  EXPECT_FALSE(same_uniform_type(with(SlidingWindow{.window = 4}), with(FullRetention{})));
}

TEST(CacheSpec, NamesSayStorageAndRetention) {
  std::set<std::string_view> names;
  for (const Storage storage : {Storage::kHeads, Storage::kLatent}) {
    for (const Retention& retention :
         {Retention{FullRetention{}}, Retention{SlidingWindow{.window = 4}}, Retention{ChunkedLocal{.chunk = 4}},
          Retention{CircularBuffer{}}, Retention{RecurrentState{}}}) {
      CacheSpec spec = with(retention);
      spec.storage = storage;
      names.insert(name_of(spec));
    }
  }
  EXPECT_EQ(names.size(), 8U);
}

TEST(CacheSpec, PagesAndAlignment) {
  CacheSpec spec{.storage = Storage::kLatent, .block_size = 1024, .state_bytes = 132, .tokens_per_state = 4};
  EXPECT_EQ(states_per_block(spec), 256);
  EXPECT_EQ(page_size_bytes(spec), 33792);
  spec.padded_page_bytes = 40000;
  EXPECT_EQ(page_size_bytes(spec), 40000);
  EXPECT_EQ(unpadded_page_bytes(spec), 33792);
  spec.block_stride_alignment = {StrideAlignment::Unit::kTokens, 6};
  EXPECT_EQ(validate(spec).error().param, "block_stride_alignment");
}

}  // namespace
}  // namespace quire::cache
