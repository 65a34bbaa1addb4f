// SmolLM3: a Llama with a tied head, some of whose layers, usually every fourth, have no rope. Source: transformers'
// SmolLM3ForCausalLM.
#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 2000000;
constexpr int kDefaultInterval = 4;  // also that of all GGUF files

// Without layer_types, windows are for layers without rope.
Result<std::vector<int>> windows_of(const HuggingFaceConfig& config, const std::vector<int>& with_rope) {
  auto windows = chosen_windows(config, static_cast<int>(with_rope.size()));
  if (windows && !config.has("layer_types"))
    for (size_t i = 0; i < with_rope.size(); ++i)
      if (with_rope[i] != 0) (*windows)[i] = 0;
  return windows;
}

}  // namespace

Result<ModelSpec> smollm3_from_hugging_face(const HuggingFaceConfig& config) {
  DecoderTraits traits{.architecture = "smollm3", .tied_head = true};
  if (auto read = read_biases(config, traits); !read) return std::unexpected(read.error());
  auto spec = plain_decoder(config, traits, kDefaultTheta);
  if (!spec) return spec;
  auto with_rope = layers_with_rope(config, static_cast<int>(spec->layers.size()), kDefaultInterval);
  if (!with_rope) return std::unexpected(with_rope.error());
  auto windows = windows_of(config, *with_rope);
  if (!windows) return std::unexpected(windows.error());
  set_windows(*spec, *windows);
  for (size_t i = 0; i < spec->layers.size(); ++i)
    if ((*with_rope)[i] == 0) spec->layers[i].attention().rope = -1;
  return spec;
}

Result<ModelSpec> smollm3_from_gguf(const GgufConfig& config) {
  DecoderTraits traits{.architecture = "smollm3", .interleaved_qk = true};
  auto spec = plain_decoder(config, traits, kDefaultTheta);
  if (!spec) return spec;
  for (size_t i = kDefaultInterval - 1; i < spec->layers.size(); i += kDefaultInterval)
    spec->layers[i].attention().rope = -1;
  return spec;
}

}  // namespace quire::model
