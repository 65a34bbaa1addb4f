// The memory behind a CachePlan: what each attention layer keeps, one allocation, and copies of whole blocks.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "cache/planner.h"
#include "model/spec.h"
#include "quire/engine.h"
#include "quire/error.h"

namespace quire::exec {

// The cache layers of a model, in its order: K and V of every attention layer, in fp32 for kF32 and bf16 otherwise.
std::vector<cache::CacheLayer> cache_layers(const model::ModelSpec& spec, Profile profile, int block_size);

class KvStorage {
 public:
  // The plan must have passed cache::check_executable().
  static Result<KvStorage> make(cache::CachePlan plan, Allocator& allocator);

  const cache::CachePlan& plan() const { return plan_; }
  std::byte* base() const { return memory_.data(); }
  size_t size() const { return memory_.size(); }

  // Copies the pages of all of the group's layers from one block to another.
  void copy_block(GroupId group, BlockId source, BlockId target);

 private:
  cache::CachePlan plan_;
  Buffer memory_;
};

}  // namespace quire::exec
