#include "cache/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace quire::cache {
namespace {

using Layers = std::vector<LayerId>;
using Specs = std::vector<CacheSpec>;

size_t index_of(LayerId layer) { return static_cast<size_t>(layer.value); }

const CacheSpec& spec_of(const Specs& specs, LayerId layer) { return specs[index_of(layer)]; }

// Layers in order, put into buckets whose members are alike; buckets are in the order of their first layer.
template <class Alike>
std::vector<Layers> bucket(const Specs& specs, const Layers& layers, Alike alike) {
  std::vector<Layers> buckets;
  for (const LayerId layer : layers) {
    const auto home = std::ranges::find_if(
        buckets, [&](const Layers& members) { return alike(spec_of(specs, members.front()), spec_of(specs, layer)); });
    if (home != buckets.end()) {
      home->push_back(layer);
    } else {
      buckets.push_back({layer});
    }
  }
  return buckets;
}

// Appends `count` groups and deals the layers out to them in turn.
void deal(const Layers& layers, int64_t count, std::vector<Layers>& groups) {
  const size_t first = groups.size();
  groups.resize(first + static_cast<size_t>(count));
  for (size_t i = 0; i < layers.size(); ++i) groups[first + i % static_cast<size_t>(count)].push_back(layers[i]);
}

bool same_page(const CacheSpec& a, const CacheSpec& b) { return page_size_bytes(a) == page_size_bytes(b); }

bool all_alike(const Specs& specs, const Layers& layers, bool (*alike)(const CacheSpec&, const CacheSpec&)) {
  return std::ranges::all_of(layers,
                             [&](LayerId l) { return alike(spec_of(specs, layers.front()), spec_of(specs, l)); });
}

CacheSpec promoted_to_full(CacheSpec spec) {
  if (const auto* window = std::get_if<SlidingWindow>(&spec.retention)) {
    spec.retention = FullRetention{.mask_window = window->window};
  } else if (const auto* chunk = std::get_if<ChunkedLocal>(&spec.retention)) {
    spec.retention = FullRetention{.mask_chunk = chunk->chunk};
  }
  return spec;
}

void promote_all(Specs& specs, const Layers& layers) {
  for (const LayerId layer : layers) {
    auto& spec = specs[index_of(layer)];
    spec = promoted_to_full(spec);
  }
}

// A bucket of one uniform type. A *repeat* is the j-th layer of each page size; only a balanced bucket has them.
struct Bucket {
  std::vector<Layers> by_page;  // layers of each page size
  bool balanced = false;
  int64_t count = 0;       // layers per page size, if balanced
  int64_t page_bytes = 0;  // sum of the distinct page sizes: the bytes of one repeat
  int64_t layers = 0;
  bool is_state = false;
};

Bucket make_bucket(const Specs& specs, const Layers& layers) {
  Bucket b;
  b.by_page = bucket(specs, layers, same_page);
  b.balanced = std::ranges::all_of(b.by_page, [&](const Layers& l) { return l.size() == b.by_page.front().size(); });
  b.count = b.balanced ? std::ssize(b.by_page.front()) : 0;
  for (const Layers& same : b.by_page) b.page_bytes += page_size_bytes(spec_of(specs, same.front()));
  b.layers = std::ssize(layers);
  return b;
}

// Layers per page size that a group should have: the d in [floor, largest count] that pads the balanced counts upwards
// least; ties go to the larger d.
int64_t best_repeats(const std::vector<Bucket>& buckets, int64_t floor) {
  int64_t most = floor;
  for (const Bucket& b : buckets) most = std::max(most, b.count);
  int64_t best = floor;
  int64_t least_padding = std::numeric_limits<int64_t>::max();
  for (int64_t d = floor; d <= most; ++d) {
    int64_t padding = 0;
    for (const Bucket& b : buckets) {
      if (b.balanced) padding += round_up(b.count, d) - b.count;
    }
    if (padding <= least_padding) {
      least_padding = padding;
      best = d;
    }
  }
  return best;
}

int64_t bytes_of(const Specs& specs, const Layers& layers) {
  int64_t sum = 0;
  for (const LayerId layer : layers) sum += page_size_bytes(spec_of(specs, layer));
  return sum;
}

std::vector<Layers> split(const Bucket& b, int64_t groups) {
  std::vector<Layers> out(static_cast<size_t>(groups));
  for (const Layers& same : b.by_page) {
    for (size_t i = 0; i < same.size(); ++i) out[i % out.size()].push_back(same[i]);
  }
  for (Layers& group : out) std::ranges::sort(group);
  return out;
}

std::vector<Layers> packed_groups(const Specs& specs, const Layers& layers) {
  const auto members = bucket(specs, layers, same_uniform_type);
  std::vector<Bucket> buckets;
  for (const Layers& m : members) buckets.push_back(make_bucket(specs, m));

  int64_t floor = 0;
  for (const Bucket& b : buckets) {
    if (b.balanced && b.by_page.size() > 1) floor = std::max(floor, b.count);
  }
  const int64_t repeats = floor == 0 ? 0 : best_repeats(buckets, floor);

  std::vector<int64_t> groups(buckets.size(), 1);
  int64_t anchor = 0;  // bytes of the widest group that must exist anyway
  for (size_t i = 0; i < buckets.size(); ++i) {
    Bucket& b = buckets[i];
    const CacheSpec& spec = spec_of(specs, members[i].front());
    if (repeats > 0 && b.balanced) groups[i] = ceil_div(b.count, repeats);
    // Blocks of state are few per request: wide groups of them would only make every other block wider.
    const bool window = keeps<SlidingWindow>(spec) || keeps<ChunkedLocal>(spec);
    b.is_state = b.by_page.size() == 1 &&
                 (keeps<RecurrentState>(spec) || keeps<CircularBuffer>(spec) || (window && repeats == 0));
    if (b.is_state) {
      anchor = std::max(anchor, b.page_bytes);
    } else {
      for (const Layers& group : split(b, groups[i])) anchor = std::max(anchor, bytes_of(specs, group));
    }
  }

  std::vector<Layers> out;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& b = buckets[i];
    if (b.is_state) {
      groups[i] = std::max(groups[i], ceil_div(b.layers, std::max<int64_t>(anchor / b.page_bytes, 1)));
    }
    std::ranges::move(split(b, groups[i]), std::back_inserter(out));
  }
  return out;
}

// Brings the page of `spec` to `page` bytes; false if that cannot be done.
bool bring_to_page(CacheSpec& spec, int64_t page) {
  const int64_t own = page_size_bytes(spec);
  if (own == page) return true;
  // The block size of a ring is its capacity, and a recurrent state has one size: both pad.
  if (keeps<RecurrentState>(spec) || keeps<CircularBuffer>(spec)) {
    spec.padded_page_bytes = page;
    return true;
  }
  if (page % own == 0 && spec.padded_page_bytes == 0) {
    spec.block_size *= page / own;
    return true;
  }
  if (spec.storage != Storage::kHeads) return false;
  spec.padded_page_bytes = page;
  return true;
}

Result<void> unify_pages(std::span<const CacheLayer> layers, Specs& specs, const Layers& which) {
  int64_t page = 0;
  for (const LayerId layer : which) page = std::max(page, page_size_bytes(spec_of(specs, layer)));
  for (const LayerId layer : which) {
    CacheSpec& spec = specs[index_of(layer)];
    const int64_t own = page_size_bytes(spec);
    if (!bring_to_page(spec, page)) {
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("cache layer {}: its page of {} bytes neither divides the largest page of {} bytes nor may be "
                      "padded ({}); choose a block-outermost layout such as BLHNC, or another block size",
                      layers[index_of(layer)].name, own, page, name_of(spec)),
          "kv_cache_layout");
    }
  }
  return {};
}

// Groups of about equally many layers: the size of the smallest bucket, or of the largest if that is less than 1.5
// times the smallest (padding a few layers costs less than another group).
std::vector<Layers> equal_groups(const std::vector<Layers>& buckets, int64_t& size) {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = 0;
  for (const Layers& b : buckets) {
    least = std::min<int64_t>(least, std::ssize(b));
    most = std::max<int64_t>(most, std::ssize(b));
  }
  size = 2 * most < 3 * least ? most : least;
  std::vector<Layers> groups;
  for (const Layers& b : buckets) deal(b, ceil_div(std::ssize(b), size), groups);
  return groups;
}

// Rows of hidden states are read by a drafter alone. They never widen the pages of the others: their block shrinks to
// the largest divisor that fits one page.
Result<void> fit_hidden(const CacheLayer& layer, CacheSpec& spec, int64_t page) {
  const int64_t token_bytes = spec.num_kv_heads * spec.state_bytes;
  int64_t tokens = std::min(spec.block_size, page / token_bytes);
  while (tokens > 0 && spec.block_size % tokens != 0) --tokens;
  if (tokens == 0) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("cache layer {}: one row of {} bytes does not fit a page of {} bytes; use a larger block size",
                    layer.name, token_bytes, page),
        "block_size");
  }
  spec.block_size = tokens;
  spec.padded_page_bytes = page;
  return {};
}

Result<void> append_hidden_groups(std::span<const CacheLayer> layers, const Layers& hidden, int64_t group_size,
                                  LayerGroups& out) {
  if (hidden.empty()) return {};
  if (out.grouping == Grouping::kSingle) out.grouping = Grouping::kUnified;
  const int64_t page = page_size_bytes(spec_of(out.specs, out.groups.front().front()));
  for (const LayerId layer : hidden) {
    const auto i = index_of(layer);
    if (auto ok = fit_hidden(layers[i], out.specs[i], page); !ok) return ok;
  }
  for (const Layers& b : bucket(out.specs, hidden, mergeable)) {
    deal(b, ceil_div(std::ssize(b), group_size), out.groups);
  }
  return {};
}

bool is_mla_and_windows(const Specs& specs, const Layers& layers) {
  return std::ranges::all_of(layers, [&](LayerId l) {
    const CacheSpec& spec = spec_of(specs, l);
    return keeps<SlidingWindow>(spec) || (keeps<FullRetention>(spec) && spec.storage == Storage::kLatent);
  });
}

Layers where(const Specs& specs, bool hidden) {
  Layers out;
  for (size_t i = 0; i < specs.size(); ++i) {
    if ((specs[i].storage == Storage::kHiddenState) == hidden) out.emplace_back(static_cast<int32_t>(i));
  }
  return out;
}

// One group for all of `layers`, if their specs allow it.
bool as_one_group(const Layers& layers, LayerGroups& out) {
  if (all_alike(out.specs, layers, mergeable)) {
    out.grouping = Grouping::kSingle;
  } else if (all_alike(out.specs, layers, same_uniform_type)) {
    out.grouping = Grouping::kUniform;
  } else {
    return false;
  }
  out.groups = {layers};
  return true;
}

std::unexpected<Error> fail_without_hybrid() {
  return fail(ErrorKind::kUnsupported,
              "without the hybrid KV cache all layers must keep the cache alike, but this model also has recurrent or "
              "circular layers, or several block sizes; leave the hybrid KV cache on",
              "disable_hybrid_kv_cache_manager");
}

// Groups `layers`, changing specs where needed. Returns how many layers a group has at most.
Result<int64_t> form_groups(std::span<const CacheLayer> all, const Layers& layers, bool hybrid, bool block_outermost,
                            LayerGroups& out) {
  int64_t size = std::ssize(layers);
  if (as_one_group(layers, out)) return size;
  if (!hybrid) {
    promote_all(out.specs, layers);
    if (!as_one_group(layers, out)) return fail_without_hybrid();
    return size;
  }
  if (block_outermost && !all_alike(out.specs, layers, same_page)) {
    out.grouping = Grouping::kPacked;
    out.groups = packed_groups(out.specs, layers);
    return size;
  }
  if (auto unified = unify_pages(all, out.specs, layers); !unified) {
    for (const LayerId layer : layers) out.specs[index_of(layer)] = all[index_of(layer)].spec;
    if (!is_mla_and_windows(out.specs, layers)) return std::unexpected(unified.error());
    promote_all(out.specs, layers);
    if (!as_one_group(layers, out)) return std::unexpected(unified.error());
    return size;
  }
  out.grouping = Grouping::kUnified;
  out.groups = equal_groups(bucket(out.specs, layers, mergeable), size);
  return size;
}

}  // namespace

Result<LayerGroups> group_layers(std::span<const CacheLayer> layers, bool hybrid, bool block_outermost) {
  LayerGroups out;
  for (const CacheLayer& layer : layers) out.specs.push_back(layer.spec);
  if (layers.empty()) return out;

  Layers hidden = where(out.specs, true);
  Layers others = where(out.specs, false);
  if (others.empty()) std::swap(hidden, others);

  const auto size = form_groups(layers, others, hybrid, block_outermost, out);
  if (!size) return std::unexpected(size.error());
  if (auto ok = append_hidden_groups(layers, hidden, *size, out); !ok) return std::unexpected(ok.error());
  return out;
}

}  // namespace quire::cache
