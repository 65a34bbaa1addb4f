// What config.json says of quantised matrices: quantization_config, for the methods that are read.
//
// Strict where it decides numbers: a method, a form or an option that is not computed is refused by its key. Which
// matrices are quantised, the tensors tell, not the lists of modules. How activations, keys and values are to be
// quantised is not read: Quire quantises them its own way, by profile and flag.
#pragma once

#include <filesystem>
#include <vector>

#include "model/config.h"
#include "quire/error.h"
#include "weights/checkpoint.h"
#include "weights/quantised_parts.h"

namespace quire::model {

// How the checkpoint's quantised matrices are kept; several if it mixes them, empty if there are none. kUnsupported or
// kCorruptFile name the key.
Result<std::vector<weights::QuantisationScheme>> quantisation_schemes(const HuggingFaceConfig& config);

// What is read instead of a folder's config.json, and what is then put into it; empty: nothing.
struct ConfigSource {
  std::filesystem::path path = {};
  std::string overrides = {};  // a JSON object, see with_overrides()
};

// weights::open_checkpoint(), with quantised matrices as tensors like others. kInvalidRequest names hf_config_path or
// hf_overrides.
Result<weights::Checkpoint> open_checkpoint(const std::filesystem::path& path, const ConfigSource& source = {});

}  // namespace quire::model
