// The six physical orders of the cache, and the strides they give a layer's page.
//
// The logical view of a layer is [B, H, N, C]: blocks, heads, states in a block, bytes of a state; L counts the layers
// that lie side by side. A name lists the dimensions from the outermost to the innermost: in LBHNC each layer is one
// region of blocks, in BLHNC each block is one region of layers.
#pragma once

#include <cstdint>
#include <string_view>

#include "cache/spec.h"
#include "quire/error.h"

namespace quire::cache {

enum class Layout : uint8_t { kLBHNC, kLBNHC, kLHBNC, kBLHNC, kBLNHC, kBHLNC };

std::string_view name_of(Layout layout);
Result<Layout> parse_layout(std::string_view name);  // kInvalidRequest, listing the names

// All pages of a block lie together.
constexpr bool is_block_outermost(Layout layout) { return layout >= Layout::kBLHNC; }

// The heads of a page lie apart (LHBNC, BHLNC): such a page has no tail to pad, and all pages must be alike.
constexpr bool splits_page_by_head(Layout layout) { return layout == Layout::kLHBNC || layout == Layout::kBHLNC; }

// The rows of one head lie apart inside a page (LBNHC, BLNHC).
constexpr bool interleaves_heads(Layout layout) { return layout == Layout::kLBNHC || layout == Layout::kBLNHC; }

// Bytes from one layer, block, head or state to the next. Row c of state n of head h of block b of the l-th layer
// begins at
//   offset + l*layer + b*block + h*head + n*state.
struct Strides {
  int64_t layer = 0;
  int64_t block = 0;
  int64_t head = 0;
  int64_t state = 0;
  bool operator==(const Strides&) const = default;
};

// Strides of `num_layers` layers of one spec that lie side by side. `block_bytes` is the distance of two blocks of the
// whole allocation in a block-outermost order; `num_blocks` counts in a layer-outermost one.
struct RunShape {
  int64_t num_layers = 0;
  int64_t num_blocks = 0;
  int64_t block_bytes = 0;
};
Strides strides_of(Layout layout, const CacheSpec& spec, const RunShape& shape);

// Bytes that a layer's page occupies: its page, in a layer-outermost order rounded up to the layer's stride alignment.
int64_t occupied_page_bytes(Layout layout, const CacheSpec& spec);

}  // namespace quire::cache
