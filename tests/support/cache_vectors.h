// For tests: the golden vectors of tests/golden/cache (or of the folder that QUIRE_CACHE_VECTORS names), and the specs
// that they describe in JSON.
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "cache/spec.h"

namespace quire::cache {

// Whether the vectors are the project's own, whose number is known.
inline bool uses_own_vectors() { return std::getenv("QUIRE_CACHE_VECTORS") == nullptr; }

// Throws if the file is missing or no JSON, so that the test fails.
inline nlohmann::json load_vectors(const std::string& name) {
  const char* folder = std::getenv("QUIRE_CACHE_VECTORS");
  const std::string path =
      (folder != nullptr ? std::string(folder) : std::string(QUIRE_TEST_DATA) + "/cache") + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

inline DType dtype_from_json(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  if (name == "f32") return DType::kF32;
  if (name == "u8") return DType::kU8;
  throw std::runtime_error("unknown dtype " + name);
}

inline StrideAlignment alignment_from_json(const nlohmann::json& value) {
  if (value.is_null()) return {};
  if (value.is_object()) return {StrideAlignment::Unit::kTokens, value.at("multiple_of")};
  return {StrideAlignment::Unit::kBytes, value};
}

inline CacheSpec recurrent_from_json(const nlohmann::json& j) {
  CacheSpec spec{.storage = Storage::kState, .block_size = j.at("block_size")};
  const auto& dtypes = j.at("dtypes");
  spec.dtype = dtype_from_json(dtypes.front());
  for (size_t i = 0; i < dtypes.size(); ++i) {
    auto bytes = static_cast<int64_t>(size_of(dtype_from_json(dtypes[i])));
    for (const int64_t n : j.at("shapes")[i]) bytes *= n;
    spec.state_bytes += bytes;
  }
  const bool align = j.value("mamba_cache_mode", "none") == "align";
  spec.retention =
      RecurrentState{.checkpoints = align ? RecurrentState::Checkpoints::kAlign : RecurrentState::Checkpoints::kNone,
                     .speculative_blocks = j.value("num_speculative_blocks", int64_t{0})};
  if (j.contains("page_size_padded") && !j["page_size_padded"].is_null())
    spec.padded_page_bytes = j["page_size_padded"];
  return spec;
}

inline CacheSpec spec_from_json(const nlohmann::json& j) {
  const std::string kind = j.at("kind");
  if (kind == "Mamba") return recurrent_from_json(j);
  CacheSpec spec{.dtype = dtype_from_json(j.at("dtype")),
                 .block_size = j.at("block_size"),
                 .num_kv_heads = j.at("num_kv_heads"),
                 .tokens_per_state = j.value("tokens_per_state", int64_t{1}),
                 .is_draft = j.value("is_draft", false),
                 .context_parallel_sharded = j.value("dcp_sharded", true)};
  const int64_t head_size = j.at("head_size");
  int64_t sides = head_size + j.value("head_size_v", head_size);
  if (kind == "MLA" || kind == "Hidden") {
    sides = head_size;
    spec.storage = kind == "MLA" ? Storage::kLatent : Storage::kHiddenState;
  } else if (kind == "SWA") {
    spec.retention = SlidingWindow{.window = j.at("sliding_window")};
  } else if (kind == "RSWA") {
    spec.retention = FullRetention{.mask_window = j.at("rswa_window")};
  } else if (kind == "Chunked") {
    spec.retention = ChunkedLocal{.chunk = j.at("attention_chunk_size")};
  } else if (kind == "Ring") {
    spec.retention = CircularBuffer{};
    spec.prefix_cacheable = false;
    spec.uses_slot_mapping = false;
  } else if (kind != "Full") {
    throw std::runtime_error("unknown spec kind " + kind);
  }
  spec.state_bytes = j.value("state_content_bytes", sides * static_cast<int64_t>(size_of(spec.dtype)));
  if (j.contains("block_stride_alignment"))
    spec.block_stride_alignment = alignment_from_json(j["block_stride_alignment"]);
  return spec;
}

}  // namespace quire::cache
