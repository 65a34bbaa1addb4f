// A file of flags: one YAML mapping, flat, from names to values. Wraps yaml-cpp.
//
//   model: model.gguf
//   max-model-len: 8192
//   api_key: [one, another]
//   check-integrity: true
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire::apps {

struct ConfigEntry {
  std::string name;                 // without dashes before it, and with '-' for '_'
  std::vector<std::string> values;  // as they stand there; not empty, and none of them is
  int line = 0;
};

// kInvalidRequest with path and line for what is no such mapping: broken YAML, a name twice, something nested, a value
// that is missing, anchors, tags, more than one document.
Result<std::vector<ConfigEntry>> read_config(const std::filesystem::path& path);

}  // namespace quire::apps
