// The longest prefix of a request that is in the cache, for one kind of group: pure functions over the index.
//
// A prefix of n tokens is hit by a group if the blocks that its layers would read from position n on are published. The
// result is a row of block ids by column, null where the group no longer needs the block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/prefix_index.h"
#include "cache/spec.h"

namespace quire::cache {

struct GroupHit {
  int64_t length = 0;                      // tokens
  std::vector<std::vector<BlockId>> rows;  // for each group, ceil(length / block_tokens) columns
};

// One lookup for groups that share a spec: a block counts only if all of them have it.
struct HitQuery {
  HitRule rule;
  std::span<const GroupId> groups;
  int64_t block_tokens = 0;      // tokens that a block of the groups covers
  int64_t chunk = 0;             // for kForwardFromChunk
  int64_t alignment_tokens = 0;  // hits end at multiples of this
  int64_t hash_block = 0;        // tokens of a hash block; divides block_tokens
  bool drop_last = false;        // match one unit more, then drop it: a drafter recomputes it
};

// The longest hit of at most `max_length` tokens. `hashes` are the request's hash blocks.
GroupHit find_hit(const PrefixIndex& index, const HitQuery& query, std::span<const BlockHash> hashes,
                  int64_t max_length);

// Whether hits of this rule may end inside a block, at a hash boundary.
inline bool finds_inside_blocks(const HitRule& rule) {
  return rule.search == HitRule::Search::kForward || rule.search == HitRule::Search::kBackwardSingle;
}

}  // namespace quire::cache
