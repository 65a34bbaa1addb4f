// Attention groups: the layers of one KV cache group that the same kernel serves in the same shape. Each has a mapped
// table of kernel pages and an attention plan of its own, made from the block table of *its own* cache group.
//
// A manager block holds one or more kernel pages (cache/kernel_blocks.h); groups over one cache group may have pages of
// different sizes. Layers find cache view and metadata by their name, never by position; a layer that shares another's
// keys and values finds those of its donor. Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "cache/kernel_blocks.h"
#include "cache/planner.h"
#include "exec/kv_storage.h"
#include "exec/step_batch.h"
#include "kernels/attention.h"
#include "kernels/row_view.h"
#include "model/spec.h"
#include "quire/engine.h"
#include "quire/error.h"

namespace quire::exec {

struct AttentionGroup {
  GroupId cache_group;
  kernels::AttentionShape shape;
  cache::KernelView kernel_view;
  cache::MappedTable pages;  // of the step: a row a sequence
  kernels::AttentionPlan plan;
};

struct LayerCache {
  int group = 0;  // index of the attention group
  kernels::KvView view;
};

// What plain code reads, in manager blocks, without an attention group: latent rows, pooled keys, rings, and the states
// of recurrent layers, which are the only row of their block.
struct RowCache {
  GroupId cache_group;
  kernels::RowView view;
  DType dtype = DType::kF32;  // of the numbers in a row
  int64_t block_tokens = 0;   // of a column of the table; what no position reaches where one column serves all
};

// What an attention group is by the plan alone, without memory.
struct AttentionOutline {
  struct Layer {
    std::string name;
    cache::LayerPlace place;  // its own, or its donor's
    cache::KernelView view;
  };
  GroupId cache_group;
  kernels::AttentionShape shape;
  cache::KernelView kernel_view;
  std::vector<Layer> layers;
};

// The attention groups of a model. The spec must have passed model::validate(); layer l of the plan is called
// layers[l].name. kUnsupported if no page of the kernels fits a layer's blocks.
Result<std::vector<AttentionOutline>> outline_attention(const model::ModelSpec& spec, const cache::CachePlan& plan,
                                                        std::span<const cache::CacheLayer> layers,
                                                        const PageSizes& pages);

// The batch's sequences, each with its row of `table`: kernel pages (cache::MappedTable) or manager blocks
// (GroupTables).
template <class Table>
void list_sequences(const StepBatch& batch, const Table& table, std::vector<kernels::AttentionSequence>& list) {
  list.clear();
  for (const BatchSequence& s : batch.sequences)
    list.push_back({table.row(std::ssize(list)), s.first_row, s.num_rows, s.first_position});
}

class AttentionGroups {
 public:
  // The spec must have passed model::validate(). Layer l of the storage's plan is called layers[l].name. Steps have up
  // to `max_num_seqs` sequences.
  static Result<AttentionGroups> make(const model::ModelSpec& spec, const KvStorage& storage,
                                      std::span<const cache::CacheLayer> layers, const PageSizes& pages,
                                      int64_t max_num_seqs);

  // Maps the batch's tables and plans its attention by these kernels, for all groups. `workers` is the pool's size.
  void prepare(const StepBatch& batch, const kernels::KernelTable& kernels, int workers);

  const LayerCache& layer(std::string_view name) const;
  const RowCache& rows(std::string_view name) const;
  const AttentionGroup& group(const LayerCache& layer) const { return groups_[static_cast<size_t>(layer.group)]; }
  std::span<const AttentionGroup> groups() const { return groups_; }

 private:
  std::vector<AttentionGroup> groups_;
  std::map<std::string, LayerCache, std::less<>> layers_;
  std::map<std::string, RowCache, std::less<>> rows_;
  std::vector<kernels::AttentionSequence> sequences_;  // scratch of prepare()
  std::vector<int32_t> used_columns_;                  // scratch of prepare()
};

}  // namespace quire::exec
