// Grouping decides which layers share block ids. Layers of one KV cache group share one block table: block b of the
// group is one page of each of its layers. A block id belongs to one group at a time, so groups share the same memory.
//
// group_layers() is a pure function of the ordered layers. It may change specs on the way (a promoted window, a padded
// page, a scaled block size); the specs it returns are final. `is_draft` never influences it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cache/spec.h"
#include "quire/error.h"

namespace quire::cache {

struct CacheLayer {
  std::string name;
  CacheSpec spec;
};

// Which rule formed the groups.
enum class Grouping : uint8_t {
  kNone,     // no layer has a cache
  kSingle,   // all specs are mergeable: one group
  kUniform,  // one retention and block size, several page sizes: one group
  kPacked,   // several page sizes side by side in a block: groups balanced by bytes
  kUnified,  // all pages made equal, groups of about equally many layers
};

struct LayerGroups {
  Grouping grouping = Grouping::kNone;
  std::vector<CacheSpec> specs;              // final, by layer
  std::vector<std::vector<LayerId>> groups;  // layers of a group are in ascending order
};

// hybrid: false asks for one group; windows and chunks then keep everything and only mask.
// block_outermost: the layout stores all pages of a block together, so pages of several sizes may be packed.
// kUnsupported, naming the layer, if the page sizes cannot be reconciled or no single group exists where one is asked
// for.
Result<LayerGroups> group_layers(std::span<const CacheLayer> layers, bool hybrid, bool block_outermost);

}  // namespace quire::cache
