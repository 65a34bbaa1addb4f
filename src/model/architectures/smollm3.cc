// SmolLM3: a Llama with a tied head, some of whose layers, usually every fourth, have no rope. Source: transformers'
// SmolLM3ForCausalLM.
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 2000000;
constexpr int kDefaultInterval = 4;  // also that of all GGUF files

// Windows are for layers without rope, unless layer_types says otherwise.
Result<std::vector<int>> windows_of(const HuggingFaceConfig& config, const std::vector<int>& with_rope) {
  std::vector<bool> chosen;
  for (int rope : with_rope) chosen.push_back(rope == 0);
  return chosen_windows(config, std::move(chosen), 0);
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
  auto spec = plain_decoder(config, traits);
  if (!spec) return spec;
  for (size_t i = kDefaultInterval - 1; i < spec->layers.size(); i += kDefaultInterval)
    spec->layers[i].attention().rope = -1;
  return spec;
}

}  // namespace quire::model
