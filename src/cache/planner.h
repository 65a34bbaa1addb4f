// The planner turns what each layer stores into one allocation: KV cache groups, the place of every layer's pages, the
// number of blocks, and whether the longest request fits. It is a pure function; nothing is allocated here.
//
// The page of a layer in block b begins at `offset + b * strides.block` of the allocation. Groups overlap from byte 0
// on: that is sound, because a block id belongs to one group at a time. Layers of one group never overlap. Block 0 is
// the null block, so a pool of n blocks serves n - 1. Ask check_executable() before running on a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/groups.h"
#include "cache/layout.h"
#include "cache/spec.h"
#include "quire/error.h"

namespace quire::cache {

struct PlanConfig {
  int64_t max_model_len = 0;         // tokens of the longest request
  bool fit_max_model_len = false;    // lower max_model_len to what fits, instead of failing
  int64_t max_in_flight_tokens = 0;  // most tokens scheduled but not yet processed
  int64_t context_parallel_size = 1;
  bool hybrid = true;  // false: one group, windows keep everything
  bool prefix_caching = true;
  bool draft_drops_block = false;              // groups with a drafter's layer give back the last block of a hit
  std::optional<int64_t> prefix_match_unit;    // tokens per hash; default: the finest that all groups share
  std::optional<int64_t> num_blocks_override;  // instead of what the budget holds
  Layout layout = Layout::kLHBNC;
  int64_t budget_bytes = 0;
};

struct CacheGroup {
  std::vector<LayerId> layers;  // ascending
  CacheSpec spec;               // of its first layer; all layers retain alike over the same block size
  int64_t bytes_per_block = 0;  // of all its layers, before alignment
  HitRule hit;                  // of all its layers together
  bool prefix_cacheable = true;
  bool drops_block = false;    // see PlanConfig::draft_drops_block
  int64_t request_blocks = 0;  // most blocks that one request of max_model_len holds
  int64_t table_columns = 0;   // block-table width for max_model_len
};

struct LayerPlace {
  GroupId group;
  CacheSpec spec;      // final: promoted, scaled or padded
  int64_t offset = 0;  // bytes, of the page in block 0
  Strides strides;     // `layer` is the distance to the next layer of the same spec in the group
};

struct CachePlan {
  Layout layout = Layout::kLHBNC;
  Grouping grouping = Grouping::kNone;
  std::vector<CacheGroup> groups;
  std::vector<LayerPlace> layers;  // by LayerId
  int64_t num_blocks = 1;          // the null block included
  int64_t bytes_per_block = 0;
  int64_t allocation_bytes = 0;
  int64_t max_model_len = 0;
  int64_t scheduler_block_size = 0;  // tokens; every group's blocks divide it
  int64_t hash_block_size = 0;       // tokens per hash; 0 without cacheable groups
  int64_t hit_alignment = 0;         // hits end at multiples of this
  bool needs_zeroing = false;        // new blocks must be zeroed: they may hold bytes of another kind

  // Blocks that one request of max_model_len holds, over all groups.
  int64_t request_blocks() const;
  // How many requests of max_model_len fill the pool.
  double max_concurrency() const;
};

// kInvalidRequest for a bad spec or configuration, naming layer and field; kUnsupported for page sizes that the layout
// cannot express; kExhausted if the budget is too small for one request of max_model_len, saying the length that would
// fit.
Result<CachePlan> plan_cache(std::span<const CacheLayer> layers, const PlanConfig& config);

// Whether this engine can run on the plan; kUnsupported, saying which layout can, if not:
// - the rows of a head must be contiguous for the kernels: no LBNHC or BLNHC with several heads;
// - in a layer-outermost layout the blocks of all groups must begin at the same multiples, or block a of one group
// would
//   share bytes with block b of another (LHBNC with different head counts, LB.. with different stride alignments).
Result<void> check_executable(const CachePlan& plan);

}  // namespace quire::cache
