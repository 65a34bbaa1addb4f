#include "exec/kv_storage.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/attention.h"

namespace quire::exec {

cache::KernelBlockSizes page_sizes(const model::AttentionSpec&) { return {.exact = {16, 32, 64}, .multiples_of = {}}; }

namespace {

constexpr int64_t kLine = 64;  // kernels' tiles begin at multiples of it, and so must all that lies between them

// int8 is for keys and values of heads; rows of other kinds are bf16 then.
DType row_dtype(DType heads) { return heads == DType::kF32 ? DType::kF32 : DType::kBF16; }

cache::CacheSpec cache_of(const model::AttentionSpec& attention, const CacheChoice& choice) {
  cache::CacheSpec cache;
  if (attention.window > 0) cache.retention = cache::SlidingWindow{.window = attention.window};
  if (attention.chunk > 0) cache.retention = cache::ChunkedLocal{.chunk = attention.chunk};
  cache.dtype = choice.dtype;
  cache.block_size = choice.block_size;
  cache.num_kv_heads = attention.kv_heads;
  cache.state_bytes = static_cast<int64_t>(kernels::kv_head_bytes(choice.dtype, 1, attention.head_dim));
  cache.block_stride_alignment = cache::stride_alignment_for(choice.pages(attention), {});
  return cache;
}

cache::CacheSpec cache_of(const model::GatedDeltaSpec& layer, const CacheChoice& choice) {
  using Checkpoints = cache::RecurrentState::Checkpoints;
  cache::CacheSpec cache;
  cache.storage = cache::Storage::kState;
  cache.retention =
      cache::RecurrentState{.checkpoints = choice.prefix_caching ? Checkpoints::kAlign : Checkpoints::kNone};
  cache.dtype = DType::kF32;
  cache.block_size = choice.block_size;
  const auto bytes = static_cast<int64_t>(kernels::gated_delta_state_size(layer.shape) * sizeof(float));
  cache.state_bytes = cache::round_up(bytes, kLine);
  cache.uses_slot_mapping = false;
  return cache;
}

// Rows that plain code reads, one for `tokens_per_row` tokens. Blocks begin at lines whatever the number of rows.
cache::CacheSpec rows_of(size_t bytes, int tokens_per_row, const CacheChoice& choice) {
  cache::CacheSpec cache;
  cache.storage = cache::Storage::kLatent;
  cache.dtype = row_dtype(choice.dtype);
  cache.block_size = choice.block_size;
  cache.tokens_per_state = tokens_per_row;
  const int64_t rows = choice.block_size / tokens_per_row;
  cache.state_bytes = cache::round_up(static_cast<int64_t>(bytes), kLine / std::gcd(kLine, std::max<int64_t>(rows, 1)));
  return cache;
}

// The tokens of the open pool. The engine runs no drafts.
cache::CacheSpec ring_of(const kernels::PooledIndexShape& shape) {
  cache::CacheSpec cache;
  cache.retention = cache::CircularBuffer{};
  cache.dtype = DType::kF32;
  cache.block_size = cache::ring_capacity(shape.pool, 0);
  cache.state_bytes = cache::round_up(static_cast<int64_t>(kernels::open_pool_row_bytes(shape)), kLine);
  cache.prefix_cacheable = false;
  return cache;
}

using Layers = std::vector<cache::CacheLayer>;

void append_layers(const model::AttentionSpec& attention, const CacheChoice& choice, Layers& layers) {
  if (attention.keeps_own()) layers.push_back({attention.name, cache_of(attention, choice)});
}

void append_layers(const model::GatedDeltaSpec& layer, const CacheChoice& choice, Layers& layers) {
  layers.push_back({layer.name, cache_of(layer, choice)});
}

void append_layers(const model::LatentSpec& layer, const CacheChoice& choice, Layers& layers) {
  kernels::LatentShape shape = layer.shape;
  shape.dtype = row_dtype(choice.dtype);
  layers.push_back({layer.name, rows_of(kernels::latent_row_bytes(shape), 1, choice)});
  if (!layer.indexer) return;
  kernels::PooledIndexShape index = layer.indexer->shape;
  index.dtype = shape.dtype;
  layers.push_back({layer.indexer->keys_name, rows_of(kernels::pooled_key_bytes(index), index.pool, choice)});
  if (index.keeps_ring()) layers.push_back({layer.indexer->ring_name, ring_of(index)});
}

}  // namespace

std::vector<cache::CacheLayer> cache_layers(const model::ModelSpec& spec, const CacheChoice& choice) {
  Layers layers;
  for (const auto& layer : spec.layers)
    std::visit([&](const auto& mixer) { append_layers(mixer, choice, layers); }, layer.mixer);
  return layers;
}

Result<KvStorage> KvStorage::make(cache::CachePlan plan, Allocator& allocator) {
  auto memory = allocator.allocate(static_cast<size_t>(plan.allocation_bytes));
  if (!memory) return std::unexpected(memory.error());
  KvStorage storage;
  storage.plan_ = std::move(plan);
  storage.memory_ = std::move(*memory);
  return storage;
}

void KvStorage::copy_block(GroupId group, BlockId source, BlockId target) {
  for (LayerId layer : plan_.groups[static_cast<size_t>(group.value)].layers) {
    const cache::LayerPlace& place = plan_.layers[static_cast<size_t>(layer.value)];
    const int64_t head_bytes = cache::states_per_block(place.spec) * place.spec.state_bytes;
    for (int64_t head = 0; head < place.spec.num_kv_heads; ++head) {
      const auto at = [&](BlockId block) {
        return base() + place.offset + block.value * place.strides.block + head * place.strides.head;
      };
      std::memcpy(at(target), at(source), static_cast<size_t>(head_bytes));
    }
  }
}

}  // namespace quire::exec
