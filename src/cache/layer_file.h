// A layer file describes the cache of a model that is not at hand: JSON with what each layer keeps (docs/simulate.md).
//
//   {"max_model_len": 131072,
//    "layers": [{"count": 18, "kind": "sliding_window", "window": 128, "num_kv_heads": 8, "head_size": 64},
//               {"count": 18, "kind": "full", "num_kv_heads": 8, "head_size": 64}]}
//
// A pure function of the text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/groups.h"
#include "quire/error.h"

namespace quire::cache {

struct LayerFile {
  std::vector<CacheLayer> layers;
  int64_t max_model_len = 0;  // tokens
};

// `block_size`: tokens of a block of layers that name none. kInvalidRequest naming the layer and the key.
Result<LayerFile> parse_layer_file(std::string_view text, int64_t block_size);

}  // namespace quire::cache
