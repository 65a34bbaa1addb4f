// Why a request's prefix was hit as far as it was, for every group: a pure function over the prefix index and the
// memory of evictions. See quire/cache_report.h for what the answer says.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cache/evicted_keys.h"
#include "cache/prefix_index.h"
#include "cache/spec.h"
#include "quire/cache_report.h"

namespace quire::cache {

// A group as hits see it.
struct ReportedGroup {
  GroupId id;
  std::string_view kind;  // a literal
  HitRule rule;
  int64_t block_tokens = 0;
  int64_t chunk = 0;        // for kForwardFromChunk
  bool drops_last = false;  // its hits drop one block
};

struct ReportQuery {
  std::span<const ReportedGroup> groups;
  std::span<const BlockHash> hashes;  // of the request
  int64_t hash_block = 0;             // tokens
  int64_t alignment_tokens = 0;       // hits end at multiples of this
  int64_t num_tokens = 0;             // of the request
  int64_t hit_length = 0;             // tokens that it takes from the cache
  bool looked_up = true;              // false: it asks nothing of the cache
  bool own_keys = false;              // salt, adapter: its keys are not everybody's
  double now = 0;                     // by the clock of the evictions
};

// To be asked before the request publishes anything itself. Costs a lookup for each block that was missed.
CacheReport report_hit(const PrefixIndex& index, const EvictedKeys& evicted, const ReportQuery& query);

}  // namespace quire::cache
