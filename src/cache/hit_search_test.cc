#include "cache/hit_search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <set>

#include "cache/coordinator.h"

namespace quire::cache {
namespace {

std::vector<BlockHash> some_hashes(int64_t count) {
  std::vector<BlockHash> hashes(static_cast<size_t>(count));
  for (size_t i = 0; i < hashes.size(); ++i) std::memcpy(hashes[i].data(), &i, sizeof i);
  return hashes;
}

// What the layers of a group read at position `length`, and whether all of it is published. Straight from the meaning
// of each retention: no search, no early end.
bool group_has(const CacheSpec& spec, const std::set<int64_t>& published_ends, int64_t length) {
  const int64_t block = spec.block_size;
  if (length == 0) return true;
  if (length % block != 0) return false;
  if (keeps<RecurrentState>(spec)) return published_ends.contains(length);
  int64_t first_token = 0;
  if (const auto* w = std::get_if<SlidingWindow>(&spec.retention)) {
    first_token = std::max<int64_t>(0, length - (w->window - 1));
  }
  if (const auto* c = std::get_if<ChunkedLocal>(&spec.retention)) first_token = length / c->chunk * c->chunk;
  for (int64_t token = first_token; token < length; ++token) {
    if (!published_ends.contains((token / block + 1) * block)) return false;
  }
  return true;
}

CacheSpec random_spec(int64_t block, bool uniform_blocks) {
  CacheSpec spec{.block_size = block, .state_bytes = 16};
  switch (*rc::gen::inRange(0, uniform_blocks ? 4 : 3)) {
    case 1:
      spec.retention = SlidingWindow{.window = *rc::gen::inRange(2, 24)};
      break;
    case 2:
      spec.retention = RecurrentState{.checkpoints = RecurrentState::Checkpoints::kAlign};
      break;
    case 3:
      spec.retention = ChunkedLocal{.chunk = block * *rc::gen::inRange(1, 5)};
      break;
    default:
      break;
  }
  if (keeps<RecurrentState>(spec)) spec.storage = Storage::kState;
  return spec;
}

// The joint hit is the longest aligned prefix that every group has, found by trying all.
TEST(HitSearch, FindsTheLongestPrefixThatEveryGroupHas) {
  EXPECT_TRUE(rc::check([] {
    const bool uniform = *rc::gen::arbitrary<bool>();
    CoordinatorConfig config{.num_blocks = 2000, .max_model_len = 4096, .limits = {.max_in_flight_tokens = 64}};
    const int num_groups = *rc::gen::inRange(1, 5);
    for (int g = 0; g < num_groups; ++g) {
      const CacheSpec spec = random_spec(uniform ? 4 : *rc::gen::element(4, 8), uniform);
      config.groups.push_back({.spec = spec, .hit = hit_rule(spec, 1)});
    }
    config.hash_block = 0;
    auto made = Coordinator::create(config);
    RC_PRE(made.has_value());
    Coordinator& coordinator = *made;
    RC_PRE(!coordinator.hits_end_inside_blocks());  // the vectors cover hits inside blocks

    const int64_t units = *rc::gen::inRange(0, 24);
    const int64_t unit = coordinator.hash_block();
    const auto hashes = some_hashes(units);
    const int density = *rc::gen::inRange(1, 11);
    std::vector<std::set<int64_t>> ends(config.groups.size());
    int32_t next = 1;
    for (size_t g = 0; g < ends.size(); ++g) {
      const int64_t block = config.groups[g].spec.block_size;
      for (int64_t end = block; end <= units * unit; end += block) {
        if (*rc::gen::inRange(0, 10) >= density) continue;
        ends[g].insert(end);
        coordinator.pool().index().insert({hashes[static_cast<size_t>(end / unit - 1)], GroupId{static_cast<int>(g)}},
                                          BlockId{next++}, end);
      }
    }
    const int64_t longest = *rc::gen::inRange<int64_t>(0, units * unit + 1);
    int64_t expected = 0;
    for (int64_t length = 0; length <= longest; length += coordinator.hit_alignment()) {
      bool all = true;
      for (size_t g = 0; g < ends.size(); ++g) all = all && group_has(config.groups[g].spec, ends[g], length);
      if (all) expected = length;
    }
    const PrefixHit hit = coordinator.find_hit(hashes, longest);
    RC_ASSERT(hit.length == expected);
    for (size_t g = 0; g < ends.size(); ++g) {
      const int64_t block = config.groups[g].spec.block_size;
      RC_ASSERT(static_cast<int64_t>(hit.rows[g].size()) == ceil_div(hit.length, block));
      const int64_t skipped = skipped_tokens(config.groups[g].spec, hit.length) / block;
      for (int64_t column = skipped; column < static_cast<int64_t>(hit.rows[g].size()); ++column) {
        const auto& hash = hashes[static_cast<size_t>((column + 1) * block / unit - 1)];
        RC_ASSERT(hit.rows[g][static_cast<size_t>(column)] != kNullBlock);
        RC_ASSERT(hit.rows[g][static_cast<size_t>(column)] ==
                  coordinator.pool().index().find({hash, GroupId{static_cast<int>(g)}}));
      }
    }
  }));
}

// Seen elsewhere: a drop repeated in every pass of the search ends at 0. Here a run from the start is too short for the
// window; the second pass, at 16 tokens, must not drop again.
TEST(CacheFaults, ADrafterDropsOneBlockOnce) {
  const CacheSpec full{.block_size = 8, .state_bytes = 16};
  CacheSpec window{.block_size = 4, .state_bytes = 16};
  window.retention = SlidingWindow{.window = 100};
  CoordinatorConfig config{.num_blocks = 100, .max_model_len = 512, .limits = {.max_in_flight_tokens = 64}};
  config.groups = {{full, hit_rule(full, 1), false}, {window, hit_rule(window, 1), true}};
  auto coordinator = *Coordinator::create(config);
  const auto hashes = some_hashes(8);
  for (int32_t i = 0; i < 7; ++i) {
    const auto& hash = hashes[static_cast<size_t>(i)];
    if (i % 2 == 1) coordinator.pool().index().insert({hash, GroupId{0}}, BlockId{1 + i}, 4 * (i + 1));
    coordinator.pool().index().insert({hash, GroupId{1}}, BlockId{20 + i}, 4 * (i + 1));
  }
  EXPECT_EQ(coordinator.find_hit(hashes, 31).length, 16);
}

}  // namespace
}  // namespace quire::cache
