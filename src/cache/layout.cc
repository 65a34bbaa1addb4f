#include "cache/layout.h"

#include <fmt/ranges.h>

#include <array>

namespace quire::cache {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"};

}  // namespace

std::string_view name_of(Layout layout) { return kNames[static_cast<size_t>(layout)]; }

Result<Layout> parse_layout(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Layout>(i);
  }
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("unknown KV cache layout '{}': use one of {}", name, fmt::join(kNames, ", ")),
              "kv_cache_layout");
}

int64_t occupied_page_bytes(Layout layout, const CacheSpec& spec) {
  const int64_t page = page_size_bytes(spec);
  return is_block_outermost(layout) ? page : round_up(page, resolved_stride_alignment(spec));
}

Strides strides_of(Layout layout, const CacheSpec& spec, const RunShape& shape) {
  const int64_t page = occupied_page_bytes(layout, spec);
  const int64_t row = spec.state_bytes;
  const int64_t head_rows = states_per_block(spec) * row;
  const int64_t cell = spec.num_kv_heads == 1 ? page : head_rows;  // what lies side by side where heads lie apart
  Strides s;
  s.block = is_block_outermost(layout) ? shape.block_bytes : page;
  s.layer = is_block_outermost(layout) ? page : page * shape.num_blocks;
  s.head = interleaves_heads(layout) ? row : head_rows;
  s.state = interleaves_heads(layout) ? row * spec.num_kv_heads : row;
  if (layout == Layout::kLHBNC) {
    s.block = cell;
    s.head = cell * shape.num_blocks;
  } else if (layout == Layout::kBHLNC) {
    s.layer = cell;
    s.head = cell * shape.num_layers;
  }
  return s;
}

}  // namespace quire::cache
