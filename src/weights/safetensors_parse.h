// The two parts of a safetensors checkpoint, parsed from their bytes: one weights file, and the index of shards.
//
// Layout of a weights file: the header's length in 8 bytes (little-endian), the header, the data. The header is JSON:
// {"NAME": {"dtype": "BF16", "shape": [N, K], "data_offsets": [begin, end]}, ..., "__metadata__": {"key": "text"}}.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/tensor_index.h"

namespace quire::weights {

// Tensors in ascending order of their data, which they must tile without gap or overlap. kCorruptFile, naming the
// tensor.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file);

// Tensor name -> shard's file name, which is a plain name in the index's own folder.
using ShardMap = std::map<std::string, std::string, std::less<>>;
Result<ShardMap> parse_shard_index(std::string_view json);

}  // namespace quire::weights
