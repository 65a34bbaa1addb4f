#include "cache/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace quire::cache {
namespace {

constexpr int64_t kMaxLayers = 8192;
constexpr int64_t kMaxLength = int64_t{1} << 31;
constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxAlignment = int64_t{1} << 40;
constexpr int64_t kMaxHashUnit = int64_t{1} << 40;

size_t index_of(LayerId layer) { return static_cast<size_t>(layer.value); }

Result<void> check_field(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("cache plan: {} is {}, must be between {} and {}", field, value, low, high), field);
}

Result<void> check_input(std::span<const CacheLayer> layers, const PlanConfig& c) {
  if (auto ok = check_field("layers", std::ssize(layers), 0, kMaxLayers); !ok) return ok;
  if (auto ok = check_field("max_model_len", c.max_model_len, 1, kMaxLength); !ok) return ok;
  if (auto ok = check_field("max_in_flight_tokens", c.max_in_flight_tokens, 0, kMaxLength); !ok) return ok;
  if (auto ok = check_field("context_parallel_size", c.context_parallel_size, 1, 1024); !ok) return ok;
  if (auto ok = check_field("budget_bytes", c.budget_bytes, 0, std::numeric_limits<int64_t>::max()); !ok) return ok;
  if (c.prefix_match_unit) {
    if (auto ok = check_field("prefix_match_unit", *c.prefix_match_unit, 1, kMaxLength); !ok) return ok;
  }
  if (c.num_blocks_override) {
    if (auto ok = check_field("num_blocks_override", *c.num_blocks_override, 1, kMaxBlocks); !ok) return ok;
  }
  for (const CacheLayer& layer : layers) {
    if (auto ok = validate(layer.spec); !ok) {
      return fail(ok.error().kind, fmt::format("layer {}: {}", layer.name, ok.error().message), ok.error().param);
    }
  }
  return {};
}

// max_blocks() of a chunk counts from the chunk's start, which therefore must begin a block.
Result<void> check_chunk(const CacheLayer& layer, const CacheSpec& spec, const PlanConfig& c) {
  const auto* local = std::get_if<ChunkedLocal>(&spec.retention);
  const int64_t tokens = tokens_per_block(spec, c.context_parallel_size);
  if (local == nullptr || local->chunk % tokens == 0) return {};
  return fail(
      ErrorKind::kUnsupported,
      fmt::format("layer {}: its attention chunk of {} tokens must be a multiple of the cache block of {} tokens",
                  layer.name, local->chunk, tokens),
      "block_size");
}

CacheGroup make_group(const LayerGroups& grouped, const std::vector<LayerId>& members,
                      std::span<const CacheLayer> layers, const PlanConfig& c) {
  CacheGroup g;
  g.layers = members;
  g.spec = grouped.specs[index_of(members.front())];
  g.hit = hit_rule(g.spec, c.context_parallel_size);
  g.prefix_cacheable = g.hit.search != HitRule::Search::kNever;
  for (const LayerId layer : members) {
    const CacheSpec& spec = grouped.specs[index_of(layer)];
    g.bytes_per_block += page_size_bytes(spec);
    g.hit.alignment_tokens = std::lcm(g.hit.alignment_tokens, spec.tokens_per_state);  // divides the block size
    g.drops_block = g.drops_block || (c.draft_drops_block && layers[index_of(layer)].spec.is_draft);
  }
  return g;
}

void size_requests(CachePlan& plan, const PlanConfig& c) {
  const CacheLimits limits{.max_in_flight_tokens = c.max_in_flight_tokens,
                           .context_parallel_size = c.context_parallel_size};
  for (CacheGroup& g : plan.groups) {
    g.request_blocks = max_blocks(g.spec, plan.max_model_len, limits);
    g.table_columns = table_columns(g.spec, plan.max_model_len, limits);
  }
}

// Bytes of one kind may be nonsense as another kind: 0 x NaN is NaN.
bool mixes_kinds(const std::vector<CacheSpec>& specs) {
  return std::ranges::any_of(
      specs, [&](const CacheSpec& s) { return keeps<RecurrentState>(s) || s.dtype != specs.front().dtype; });
}

Result<void> check_layout(Layout layout, const LayerGroups& grouped, std::span<const CacheLayer> layers) {
  if (!splits_page_by_head(layout)) return {};
  std::set<int64_t> pages;
  for (const CacheSpec& spec : grouped.specs) pages.insert(page_size_bytes(spec));
  if (pages.size() > 1) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("KV cache layout {} needs pages of one size, but this model's have {} bytes; use BLHNC",
                            name_of(layout), fmt::join(pages, ", ")),
                "kv_cache_layout");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const CacheSpec& spec = grouped.specs[i];
    if (spec.num_kv_heads == 1 || occupied_page_bytes(layout, spec) == unpadded_page_bytes(spec)) continue;
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("KV cache layout {} stores the {} heads of layer {} apart, so its page of {} bytes cannot be "
                    "padded to {}; use BLHNC or LBHNC",
                    name_of(layout), spec.num_kv_heads, layers[i].name, unpadded_page_bytes(spec),
                    occupied_page_bytes(layout, spec)),
        "kv_cache_layout");
  }
  return {};
}

Result<int64_t> block_bytes(Layout layout, const LayerGroups& grouped) {
  int64_t widest = 0;
  int64_t alignment = 1;
  for (const auto& members : grouped.groups) {
    int64_t sum = 0;
    for (const LayerId layer : members) {
      const CacheSpec& spec = grouped.specs[index_of(layer)];
      const int64_t own = resolved_stride_alignment(spec);
      sum += occupied_page_bytes(layout, spec);
      // Both factors are at most 2^40, so the quotient's product with the other is checked before it is formed.
      if (alignment / std::gcd(alignment, own) > kMaxAlignment / own) {
        return fail(ErrorKind::kUnsupported,
                    "cache plan: the layers' block stride alignments have no common multiple "
                    "below 2^40 bytes",
                    "block_stride_alignment");
      }
      alignment = std::lcm(alignment, own);
    }
    widest = std::max(widest, sum);
  }
  return is_block_outermost(layout) ? round_up(widest, alignment) : widest;
}

// Layers of one spec in a group lie side by side; runs follow one another in the order of their first layer.
void place_group(CachePlan& plan, GroupId id) {
  const CacheGroup& group = plan.groups[static_cast<size_t>(id.value)];
  std::vector<std::vector<LayerId>> runs;
  for (const LayerId layer : group.layers) {
    const auto run = std::ranges::find_if(runs, [&](const auto& r) {
      return mergeable(plan.layers[index_of(r.front())].spec, plan.layers[index_of(layer)].spec);
    });
    if (run == runs.end()) {
      runs.push_back({layer});
    } else {
      run->push_back(layer);
    }
  }
  int64_t offset = 0;
  for (const auto& run : runs) {
    const CacheSpec& spec = plan.layers[index_of(run.front())].spec;
    const Strides strides =
        strides_of(plan.layout, spec,
                   {.num_layers = std::ssize(run), .num_blocks = plan.num_blocks, .block_bytes = plan.bytes_per_block});
    const int64_t page = occupied_page_bytes(plan.layout, spec);
    for (size_t i = 0; i < run.size(); ++i) {
      LayerPlace& place = plan.layers[index_of(run[i])];
      place.group = id;
      place.offset = offset + static_cast<int64_t>(i) * strides.layer;
      place.strides = strides;
    }
    offset += std::ssize(run) * page * (is_block_outermost(plan.layout) ? 1 : plan.num_blocks);
  }
}

int64_t blocks_for(const CachePlan& plan, const PlanConfig& c, int64_t length) {
  const CacheLimits limits{.max_in_flight_tokens = c.max_in_flight_tokens,
                           .context_parallel_size = c.context_parallel_size};
  int64_t sum = 0;
  for (const CacheGroup& g : plan.groups) sum += max_blocks(g.spec, length, limits);
  return sum;
}

// The longest request that the pool holds beside the null block; 0 if none does. blocks_for() never falls with length.
int64_t longest_that_fits(const CachePlan& plan, const PlanConfig& c) {
  int64_t fits = 0;
  int64_t too_long = c.max_model_len + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (blocks_for(plan, c, middle) <= plan.num_blocks - 1 ? fits : too_long) = middle;
  }
  return fits;
}

Result<void> admit_longest(CachePlan& plan, const PlanConfig& c) {
  const int64_t needed = blocks_for(plan, c, c.max_model_len);
  if (needed <= plan.num_blocks - 1) return {};
  const int64_t fits = longest_that_fits(plan, c);
  if (c.fit_max_model_len && fits > 0) {
    plan.max_model_len = fits;
    return {};
  }
  const auto bytes_of = [&](int64_t blocks) {  // of hostile specs they may be more than an integer holds
    return static_cast<double>(plan.bytes_per_block) * static_cast<double>(blocks);
  };
  const std::string remedy =
      fits > 0
          ? fmt::format("the longest that would fit has {} tokens. Give more memory or a smaller max_model_len", fits)
          : "not one token would fit. Give more memory, or smaller blocks by block_size";
  return fail(ErrorKind::kExhausted,
              fmt::format("kv_cache_memory_bytes: the KV cache of {:.0f} bytes is too small: one request of "
                          "max_model_len {} needs {:.0f}; {}",
                          c.num_blocks_override ? bytes_of(plan.num_blocks) : static_cast<double>(c.budget_bytes),
                          c.max_model_len, bytes_of(needed + 1), remedy),
              "kv_cache_memory_bytes");
}

Result<void> resolve_match_unit(CachePlan& plan, const PlanConfig& c, int64_t finest) {
  plan.hash_block_size = finest;
  if (c.prefix_match_unit) {
    const int64_t unit = *c.prefix_match_unit;
    if (plan.groups.size() == 1 && unit != finest) {
      return fail(
          ErrorKind::kInvalidRequest,
          fmt::format("prefix_match_unit is {}, but with one KV cache group hits end at its blocks of {} tokens: "
                      "leave it out or set it to {}",
                      unit, finest, finest),
          "prefix_match_unit");
    }
    if (finest % unit != 0) {
      return fail(
          ErrorKind::kInvalidRequest,
          fmt::format("prefix_match_unit is {}, which must divide the block size of every cacheable group: use a "
                      "divisor of {}",
                      unit, finest),
          "prefix_match_unit");
    }
    plan.hash_block_size = unit;
  }
  for (const CacheGroup& g : plan.groups) {
    if (!g.prefix_cacheable || plan.hash_block_size % g.hit.alignment_tokens == 0) continue;
    return fail(
        ErrorKind::kInvalidRequest,
        fmt::format("prefix hits would end at multiples of {} tokens, but a layer stores one state for {} tokens: "
                    "choose block sizes that share this factor",
                    plan.hash_block_size, g.hit.alignment_tokens),
        "prefix_match_unit");
  }
  return {};
}

Result<void> resolve_block_sizes(CachePlan& plan, const PlanConfig& c) {
  int64_t finest = 0;
  plan.scheduler_block_size = 1;
  for (const CacheGroup& g : plan.groups) {
    const int64_t tokens = tokens_per_block(g.spec, c.context_parallel_size);
    if (plan.scheduler_block_size / std::gcd(plan.scheduler_block_size, tokens) > kMaxHashUnit / tokens) {
      return fail(ErrorKind::kUnsupported, "cache plan: the groups' block sizes have no common multiple below 2^40",
                  "block_size");
    }
    plan.scheduler_block_size = std::lcm(plan.scheduler_block_size, tokens);
    if (g.prefix_cacheable) finest = std::gcd(finest, tokens);
  }
  plan.hit_alignment = plan.scheduler_block_size;
  if (finest == 0 || !c.prefix_caching) {
    plan.hash_block_size = plan.scheduler_block_size;
    return {};
  }
  return resolve_match_unit(plan, c, finest);
}

}  // namespace

int64_t CachePlan::request_blocks() const {
  int64_t sum = 0;
  for (const CacheGroup& g : groups) sum += g.request_blocks;
  return sum;
}

double CachePlan::max_concurrency() const {
  return groups.empty() ? 0 : static_cast<double>(num_blocks) / static_cast<double>(request_blocks());
}

Result<CachePlan> plan_cache(std::span<const CacheLayer> layers, const PlanConfig& config) {
  if (auto ok = check_input(layers, config); !ok) return std::unexpected(ok.error());
  auto grouped = group_layers(layers, config.hybrid, is_block_outermost(config.layout));
  if (!grouped) return std::unexpected(grouped.error());

  CachePlan plan;
  plan.layout = config.layout;
  plan.grouping = grouped->grouping;
  plan.max_model_len = config.max_model_len;
  if (layers.empty()) return plan;

  for (size_t i = 0; i < layers.size(); ++i) {
    plan.layers.emplace_back().spec = grouped->specs[i];
    if (auto ok = validate(grouped->specs[i]); !ok) {
      return fail(ok.error().kind,
                  fmt::format("layer {}, after grouping: {}; use smaller blocks", layers[i].name, ok.error().message),
                  ok.error().param);
    }
    if (auto ok = check_chunk(layers[i], grouped->specs[i], config); !ok) return std::unexpected(ok.error());
  }
  if (auto ok = check_layout(config.layout, *grouped, layers); !ok) return std::unexpected(ok.error());
  for (const auto& members : grouped->groups) plan.groups.push_back(make_group(*grouped, members, layers, config));

  auto bytes = block_bytes(config.layout, *grouped);
  if (!bytes) return std::unexpected(bytes.error());
  plan.bytes_per_block = *bytes;
  plan.num_blocks = config.num_blocks_override.value_or(std::min(config.budget_bytes / *bytes, kMaxBlocks));
  if (plan.num_blocks > std::numeric_limits<int64_t>::max() / plan.bytes_per_block) {
    return fail(ErrorKind::kInvalidRequest, "cache plan: num_blocks_override asks for more than 2^63 bytes",
                "num_blocks_override");
  }
  plan.allocation_bytes = plan.num_blocks * plan.bytes_per_block;
  plan.needs_zeroing = mixes_kinds(grouped->specs);

  if (auto ok = admit_longest(plan, config); !ok) return std::unexpected(ok.error());
  size_requests(plan, config);
  if (auto ok = resolve_block_sizes(plan, config); !ok) return std::unexpected(ok.error());
  for (size_t g = 0; g < plan.groups.size(); ++g) place_group(plan, GroupId{static_cast<int32_t>(g)});
  return plan;
}

Result<void> check_executable(const CachePlan& plan) {
  for (const LayerPlace& place : plan.layers) {
    if (interleaves_heads(plan.layout) && place.spec.num_kv_heads > 1) {
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("KV cache layout {} interleaves the rows of {} heads, but the kernels read a head's rows as "
                      "one tile: use {}",
                      name_of(plan.layout), place.spec.num_kv_heads, plan.layout == Layout::kLBNHC ? "LBHNC" : "BLHNC"),
          "kv_cache_layout");
    }
    const int64_t common = plan.layers.front().strides.block;
    if (plan.groups.size() > 1 && !is_block_outermost(plan.layout) && place.strides.block != common) {
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("in KV cache layout {} blocks of one group begin {} bytes apart and those of another {}, so "
                      "that they would overwrite each other: use BLHNC",
                      name_of(plan.layout), common, place.strides.block),
          "kv_cache_layout");
    }
  }
  return {};
}

}  // namespace quire::cache
