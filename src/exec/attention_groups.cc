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

Result<AttentionOutline> outline_layer(const model::AttentionSpec& attention, const cache::CachePlan& plan,
                                       const cache::LayerPlace& place, int64_t page_tokens) {
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
  return AttentionOutline{place.group, shape, *view, {{attention.name, place, *view}}};
}

const AttentionOutline& group_of(const std::vector<AttentionOutline>& groups, const std::string& layer) {
  const auto group = std::ranges::find_if(groups, [&](const AttentionOutline& g) {
    return std::ranges::find(g.layers, layer, &AttentionOutline::Layer::name) != g.layers.end();
  });
  QUIRE_CHECK(group != groups.end());
  return *group;
}

// Where the plan put the layer of that name.
const cache::LayerPlace& place_of(const std::string& name, const cache::CachePlan& plan,
                                  std::span<const cache::CacheLayer> layers) {
  const auto it = std::ranges::find(layers, name, &cache::CacheLayer::name);
  QUIRE_CHECK(it != layers.end());
  return plan.layers[static_cast<size_t>(it - layers.begin())];
}

}  // namespace

Result<std::vector<AttentionOutline>> outline_attention(const model::ModelSpec& spec, const cache::CachePlan& plan,
                                                        std::span<const cache::CacheLayer> layers,
                                                        const PageSizes& pages) {
  std::vector<AttentionOutline> groups;
  for (const auto& layer : spec.layers) {
    const auto* attention = std::get_if<model::AttentionSpec>(&layer.mixer);
    if (attention == nullptr) continue;
    const std::string& keeper = attention->keeps_own() ? attention->name : attention->donor;
    const cache::LayerPlace& place = place_of(keeper, plan, layers);
    auto page_tokens = attention->keeps_own() ? choose_page(place.spec, pages(*attention))
                                              : group_of(groups, keeper).shape.page_tokens;
    if (!page_tokens) return std::unexpected(page_tokens.error());
    auto outline = outline_layer(*attention, plan, place, *page_tokens);
    if (!outline) return std::unexpected(outline.error());
    const auto same = std::ranges::find_if(groups, [&](const AttentionOutline& g) {
      return g.cache_group == outline->cache_group &&
             g.kernel_view.pages_between_blocks == outline->kernel_view.pages_between_blocks &&
             same_shape(g.shape, outline->shape);
    });
    if (same == groups.end()) {
      groups.push_back(std::move(*outline));
    } else {
      same->layers.push_back(std::move(outline->layers.front()));
    }
  }
  return groups;
}

Result<AttentionGroups> AttentionGroups::make(const model::ModelSpec& spec, const KvStorage& storage,
                                              std::span<const cache::CacheLayer> layers, const PageSizes& pages,
                                              int64_t max_num_seqs) {
  const cache::CachePlan& plan = storage.plan();
  auto outlines = outline_attention(spec, plan, layers, pages);
  if (!outlines) return std::unexpected(outlines.error());
  AttentionGroups result;
  for (const AttentionOutline& outline : *outlines) {
    const int64_t columns = plan.groups[static_cast<size_t>(outline.cache_group.value)].table_columns;
    auto table = cache::MappedTable::create(max_num_seqs, columns, outline.kernel_view);
    if (!table) return std::unexpected(table.error());
    for (const AttentionOutline::Layer& layer : outline.layers) {
      LayerCache cache;
      cache.group = static_cast<int>(result.groups_.size());
      cache.view = {.base = storage.base() + layer.place.offset,
                    .page_stride = static_cast<size_t>(layer.view.page_bytes),
                    .head_stride = static_cast<size_t>(layer.view.head_bytes),
                    .block_tokens = static_cast<int>(layer.place.spec.block_size),
                    .pages_per_block = static_cast<int>(layer.view.pages_between_blocks)};
      result.layers_.emplace(layer.name, cache);
    }
    result.groups_.push_back({outline.cache_group, outline.shape, outline.kernel_view, std::move(*table), {}});
    const int64_t block_tokens = outline.layers.front().place.spec.block_size;
    result.groups_.back().plan.reserve(outline.shape, max_num_seqs, plan.max_model_len, plan.num_blocks * block_tokens);
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    if (result.layers_.contains(layers[l].name)) continue;
    const cache::LayerPlace& place = plan.layers[l];
    RowCache rows{place.group,
                  {},
                  place.spec.dtype,
                  cache::holds_fixed_blocks(place.spec) ? std::numeric_limits<int64_t>::max() : place.spec.block_size};
    rows.view = {.base = storage.base() + place.offset,
                 .block_stride = static_cast<size_t>(place.strides.block),
                 .row_stride = static_cast<size_t>(place.strides.state),
                 .rows_per_block = cache::states_per_block(place.spec)};
    result.rows_.emplace(layers[l].name, rows);
  }
  return result;
}

void AttentionGroups::prepare(const StepBatch& batch, const kernels::KernelTable& kernels, int workers) {
  for (AttentionGroup& group : groups_) {
    const GroupTables& tables = batch.tables(group.cache_group);
    const int64_t block_tokens = group.shape.page_tokens * group.kernel_view.pages_per_block;
    used_columns_.clear();
    for (const BatchSequence& sequence : batch.sequences) {
      const int64_t tokens = sequence.first_position + sequence.num_rows;
      used_columns_.push_back(static_cast<int32_t>(cache::ceil_div(tokens, block_tokens)));
    }
    group.pages.update(tables.blocks, used_columns_);
    list_sequences(batch, group.pages, sequences_);
    group.plan.build(kernels, group.shape, sequences_, workers);
  }
}

const LayerCache& AttentionGroups::layer(std::string_view name) const {
  const auto it = layers_.find(name);
  QUIRE_CHECK(it != layers_.end());
  return it->second;
}

const RowCache& AttentionGroups::rows(std::string_view name) const {
  const auto it = rows_.find(name);
  QUIRE_CHECK(it != rows_.end());
  return it->second;
}

}  // namespace quire::exec
