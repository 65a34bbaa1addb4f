// The prefix-cache vectors of the reference: hits, write masks, boundaries and bounds.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/coordinator.h"
#include "cache/write_mask.h"
#include "support/cache_vectors.h"

namespace quire::cache {
namespace {

using nlohmann::json;

// The request's i-th hash block. Values do not matter, only that they differ.
std::vector<BlockHash> some_hashes(int64_t count) {
  std::vector<BlockHash> hashes(static_cast<size_t>(count));
  for (size_t i = 0; i < hashes.size(); ++i) std::memcpy(hashes[i].data(), &i, sizeof i);
  return hashes;
}

CoordinatorConfig config_of(const json& c) {
  const int64_t dcp = c.at("dcp");
  CoordinatorConfig config{.num_blocks = 1000,
                           .max_model_len = 4096,
                           .limits = {.max_in_flight_tokens = 256, .context_parallel_size = dcp},
                           .scheduler_block = c.at("scheduler_block_size"),
                           .hash_block = c.at("hash_block_size")};
  for (const auto& s : c.at("specs")) {
    CacheSpec spec = spec_from_json(s);
    if (s.at("kind") == "Mamba") spec.context_parallel_sharded = false;
    config.groups.push_back({.spec = spec, .hit = hit_rule(spec, dcp)});
  }
  for (const size_t g : c.at("eagle_groups")) config.groups[g].drops_block = true;
  config.all_groups_drop_block = c.at("use_eagle") && c.at("eagle_groups").empty();
  return config;
}

void expect_hit(const json& c) {
  auto made = Coordinator::create(config_of(c));
  ASSERT_TRUE(made) << made.error().message;
  Coordinator& coordinator = *made;
  const json& expected = c.at("expected");
  EXPECT_EQ(coordinator.hit_alignment(), expected.at("cache_hit_alignment_tokens"));
  EXPECT_EQ(coordinator.hits_end_inside_blocks(), expected.at("partial_hash_hits"));

  const auto hashes = some_hashes(c.at("num_hashes"));
  for (size_t g = 0; g < c.at("cached").size(); ++g) {
    for (const auto& entry : c["cached"][g]) {
      const int64_t boundary = entry[0];
      const auto unit = static_cast<size_t>(boundary / coordinator.hash_block() - 1);
      const GroupId group{static_cast<int32_t>(g)};
      coordinator.pool().index().insert({hashes[unit], group}, BlockId{entry[1]}, boundary);
    }
  }
  const int64_t longest = c.at("max_cache_hit_length");
  const auto hit = coordinator.find_hit(hashes, longest);
  EXPECT_EQ(hit.length, expected.at("hit_length"));
  EXPECT_EQ(hit.uncached_common, expected.at("num_uncached_common_prefix_tokens"));
  for (size_t g = 0; g < hit.rows.size(); ++g) {
    std::vector<int32_t> ids;
    for (const BlockId block : hit.rows[g]) ids.push_back(block.value);
    EXPECT_EQ(ids, expected.at("blocks")[g].get<std::vector<int32_t>>()) << "group " << g;
  }
  if (expected.contains("per_group_hit_lengths")) {
    EXPECT_EQ(coordinator.hit_lengths(hashes, longest), expected["per_group_hit_lengths"].get<std::vector<int64_t>>());
  }
}

RetentionPolicy retention_of(const json& interval) {
  using Keep = RetentionPolicy::Keep;
  if (interval.is_null()) return {};
  if (interval == 0) return {.keep = Keep::kKnownReuse};
  return {.keep = Keep::kEveryInterval, .interval_tokens = interval};
}

void expect_mask(const json& c) {
  const int64_t block = c.at("block_size");
  CacheSpec spec{.block_size = block, .state_bytes = 16};
  if (c.at("manager") == "swa") {
    spec.retention = SlidingWindow{.window = c.at("window")};
  } else {
    ASSERT_EQ(c.at("manager"), "mamba");
    spec.retention = RecurrentState{.checkpoints = RecurrentState::Checkpoints::kAlign};
  }
  const auto boundaries = c.at("reachable_boundaries").get<std::vector<int64_t>>();
  WriteMaskQuery query{.rule = hit_rule(spec, 1),
                       .block_tokens = block,
                       .alignment_tokens = c.at("alignment_tokens"),
                       .drops_last_block = c.at("use_eagle"),
                       .retention = retention_of(c.at("retention_interval")),
                       .reused_boundaries = boundaries};
  if (!c.at("final_segment_end_block").is_null()) query.final_segment_end = c["final_segment_end_block"];
  std::vector<bool> mask = {true, false, true};  // what it held before does not matter
  const bool some = write_mask(query, c.at("start_block"), c.at("end_block"), mask);
  const json& expected = c.at("expected").at("mask");
  ASSERT_EQ(some, !expected.is_null());
  if (!some) return;
  EXPECT_EQ(std::vector<int>(mask.begin(), mask.end()), expected.get<std::vector<int>>());
}

void expect_admission(const json& c) {
  const CacheLimits limits{.max_in_flight_tokens = c.at("max_in_flight_tokens")};
  const int64_t length = c.at("max_model_len");
  CacheSpec spec{.block_size = c.at("block_size"), .state_bytes = 16};
  spec.retention = SlidingWindow{.window = c.at("sliding_window"), .extra_retained = c.at("extra_retained_tokens")};
  EXPECT_EQ(max_blocks(spec, length, limits), c.at("expected").at("swa_blocks"));
  spec.retention = ChunkedLocal{.chunk = c.at("attention_chunk_size")};
  EXPECT_EQ(max_blocks(spec, length, limits), c.at("expected").at("chunked_blocks"));
}

void expect_boundary(const json& c) {
  EXPECT_EQ(std::vector{replay_boundary(c.at("num_prompt_tokens"), c.at("scheduler_block_size"), c.at("use_eagle"))},
            c.at("expected").at("boundaries").get<std::vector<int64_t>>());
}

void expect_checkpoint(const json& c) {
  EXPECT_EQ(checkpoint_position(c.at("num_tokens"), c.at("hash_block_size"), c.at("drop_eagle_block"),
                                c.at("num_hash_lookahead_tokens")),
            c.at("expected").at("position"));
}

TEST(CacheVectors, PrefixHits) {
  const std::map<std::string, void (*)(const json&)> checks = {{"hit", expect_hit},
                                                               {"reachable_mask", expect_mask},
                                                               {"admission_cap", expect_admission},
                                                               {"replay_boundaries", expect_boundary},
                                                               {"mamba_checkpoint_position", expect_checkpoint}};
  std::map<std::string, int> run;
  const json file = load_vectors("prefix_hits.json");
  for (size_t i = 0; i < file.at("cases").size(); ++i) {
    const json& c = file["cases"][i];
    const std::string kind = c.at("kind");
    SCOPED_TRACE("case " + std::to_string(i) + ", " + kind + " " + c.value("name", ""));
    const auto check = checks.find(kind);
    ASSERT_NE(check, checks.end());
    check->second(c);
    ++run[kind];
  }
  if (!uses_own_vectors()) return;
  EXPECT_EQ(run, (std::map<std::string, int>{{"hit", 181},
                                             {"reachable_mask", 46},
                                             {"admission_cap", 18},
                                             {"replay_boundaries", 16},
                                             {"mamba_checkpoint_position", 11}}));
}

}  // namespace
}  // namespace quire::cache
