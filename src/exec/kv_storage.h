// The memory behind a CachePlan: what each attention layer keeps, one allocation, and copies of whole blocks.
#pragma once

#include <functional>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "cache/kernel_blocks.h"
#include "cache/planner.h"
#include "model/spec.h"
#include "quire/engine.h"
#include "quire/error.h"

namespace quire::exec {

// The pages, in tokens, that the kernel of a layer takes.
using PageSizes = std::function<cache::KernelBlockSizes(const model::AttentionSpec&)>;
cache::KernelBlockSizes page_sizes(const model::AttentionSpec& attention);

// What a model's cache is made of, beside the model.
struct CacheChoice {
  DType dtype = DType::kBF16;  // of keys and values
  int block_size = 0;          // tokens of a manager block
  bool prefix_caching = true;
  PageSizes pages = page_sizes;
};

// The cache layers of a model, in its order: K and V of every attention layer that keeps its own; the rows of latent
// layers, and the pooled keys and rings of their indexers; the states of recurrent layers in fp32, with a checkpoint at
// every block for the prefix cache. Blocks that a kernel must split are aligned, so that its pages tile them in every
// layout.
std::vector<cache::CacheLayer> cache_layers(const model::ModelSpec& spec, const CacheChoice& choice);

class KvStorage {
 public:
  // The plan must have passed cache::check_executable(). Blocks need no zeroing when they change hands: no kernel reads
  // as a number what its own group has not written.
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
