#include "exec/attention_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace quire::exec {
namespace {

bool same_shape(const kernels::AttentionShape& a, const kernels::AttentionShape& b) {
  return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.page_tokens == b.page_tokens && a.dtype == b.dtype && a.window == b.window && a.chunk == b.chunk;
}

Result<int64_t> choose_page(const cache::CacheSpec& spec, const cache::KernelBlockSizes& taken) {
  return cache::select_kernel_block(spec.block_size, {&taken, 1});
}

Result<AttentionGroup> make_group(const model::AttentionSpec& attention, const cache::CachePlan& plan,
                                  const cache::LayerPlace& place, int64_t page_tokens, int64_t max_num_seqs) {
  const kernels::AttentionShape shape = {.q_heads = attention.q_heads,
                                         .kv_heads = attention.kv_heads,
                                         .head_dim = attention.head_dim,
                                         .page_tokens = static_cast<int>(page_tokens),
                                         .dtype = place.spec.dtype,
                                         .window = attention.window,
                                         .chunk = attention.chunk};
  if (auto checked = kernels::check_attention_shape(shape); !checked) return std::unexpected(checked.error());
  auto view = cache::view_kernel_blocks(plan.layout, place, plan.num_blocks, page_tokens);
  if (!view) return std::unexpected(view.error());
  if (view->num_pages > std::numeric_limits<int32_t>::max())
    return fail(ErrorKind::kUnsupported, "the cache has more kernel pages than 31 bits can number; use a larger block");
  const int64_t columns = plan.groups[static_cast<size_t>(place.group.value)].table_columns;
  auto pages = cache::MappedTable::create(max_num_seqs, columns, *view);
  if (!pages) return std::unexpected(pages.error());
  return AttentionGroup{place.group, shape, *view, std::move(*pages), {}};
}

}  // namespace

Result<AttentionGroups> AttentionGroups::make(const model::ModelSpec& spec, const KvStorage& storage,
                                              std::span<const cache::CacheLayer> layers, const PageSizes& pages,
                                              int64_t max_num_seqs) {
  const cache::CachePlan& plan = storage.plan();
  AttentionGroups result;
  const auto place_of = [&](const std::string& name) -> const cache::LayerPlace& {
    const auto it = std::ranges::find(layers, name, &cache::CacheLayer::name);
    QUIRE_CHECK(it != layers.end());
    return plan.layers[static_cast<size_t>(it - layers.begin())];
  };
  for (const auto& layer : spec.layers) {
    const auto* attends = std::get_if<model::AttentionSpec>(&layer.mixer);
    if (attends == nullptr) {
      const std::string& name = model::name_of(layer.mixer);
      const cache::LayerPlace& place = place_of(name);
      result.states_.emplace(name, StateCache{place.group, storage.base() + place.offset,
                                              static_cast<size_t>(place.strides.block), place.spec.block_size});
      continue;
    }
    const model::AttentionSpec& attention = *attends;
    const std::string& keeper = attention.keeps_own() ? attention.name : attention.donor;
    const cache::LayerPlace& place = place_of(keeper);
    auto page_tokens = attention.keeps_own() ? choose_page(place.spec, pages(attention))
                                             : result.group(result.layer(keeper)).shape.page_tokens;
    if (!page_tokens) return std::unexpected(page_tokens.error());
    auto group = make_group(attention, plan, place, *page_tokens, max_num_seqs);
    if (!group) return std::unexpected(group.error());

    const auto same = std::ranges::find_if(result.groups_, [&](const AttentionGroup& g) {
      return g.cache_group == group->cache_group &&
             g.kernel_view.pages_between_blocks == group->kernel_view.pages_between_blocks &&
             same_shape(g.shape, group->shape);
    });
    LayerCache cache;
    cache.group = static_cast<int>(same - result.groups_.begin());
    cache.view = {.base = storage.base() + place.offset,
                  .page_stride = static_cast<size_t>(group->kernel_view.page_bytes),
                  .head_stride = static_cast<size_t>(group->kernel_view.head_bytes),
                  .block_tokens = static_cast<int>(place.spec.block_size),
                  .pages_per_block = static_cast<int>(group->kernel_view.pages_between_blocks)};
    if (same == result.groups_.end()) result.groups_.push_back(std::move(*group));
    result.layers_.emplace(attention.name, cache);
  }
  return result;
}

void AttentionGroups::prepare(const StepBatch& batch, int workers) {
  for (AttentionGroup& group : groups_) {
    const GroupTables& tables = batch.groups[static_cast<size_t>(group.cache_group.value)];
    const int64_t block_tokens = group.shape.page_tokens * group.kernel_view.pages_per_block;
    used_columns_.clear();
    for (const BatchSequence& sequence : batch.sequences) {
      const int64_t tokens = sequence.first_position + sequence.num_rows;
      used_columns_.push_back(static_cast<int32_t>(cache::ceil_div(tokens, block_tokens)));
    }
    group.pages.update(tables.blocks, used_columns_);
    sequences_.clear();
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const BatchSequence& sequence = batch.sequences[s];
      sequences_.push_back(
          {group.pages.row(static_cast<int64_t>(s)), sequence.first_row, sequence.num_rows, sequence.first_position});
    }
    group.plan.build(group.shape, sequences_, workers);
  }
}

const LayerCache& AttentionGroups::layer(std::string_view name) const {
  const auto it = layers_.find(name);
  QUIRE_CHECK(it != layers_.end());
  return it->second;
}

const StateCache& AttentionGroups::states(std::string_view name) const {
  const auto it = states_.find(name);
  QUIRE_CHECK(it != states_.end());
  return it->second;
}

}  // namespace quire::exec
