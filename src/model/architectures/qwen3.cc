// Qwen3 (dense): a Llama with an RMSNorm on every q and k head before rope. Source: transformers' Qwen3ForCausalLM.
#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 1000000;
const DecoderTraits kTraits{.architecture = "qwen3", .qk_norm = true};

// The window of each layer: by layer_types where the configuration has them, else from max_window_layers on.
Result<std::vector<int>> windows(const HuggingFaceConfig& config, int layers) {
  std::vector<int> out(static_cast<size_t>(layers), 0);
  auto windowed = windowed_layers(config, layers);
  if (!windowed) return std::unexpected(windowed.error());
  auto use = config.boolean_or("use_sliding_window", false);
  if (!use) return std::unexpected(use.error());
  if (!*use || !config.has("sliding_window")) return out;
  auto window = config.integer("sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  if (!windowed->empty()) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = (*windowed)[i] ? *window : 0;
    return out;
  }
  auto first = config.integer_or("max_window_layers", 0, kMaxLayers, 0);
  if (!first) return std::unexpected(first.error());
  for (int i = *first; i < layers; ++i) out[static_cast<size_t>(i)] = *window;
  return out;
}

}  // namespace

Result<ModelSpec> qwen3_from_hugging_face(const HuggingFaceConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto bias = config.boolean_or("attention_bias", false);
  if (!bias) return std::unexpected(bias.error());
  if (*bias) return fail(ErrorKind::kUnsupported, "attention_bias is not supported", "attention_bias");
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  auto rope = hugging_face_rope(config, "", sizes->head_dim, kDefaultTheta);
  if (!rope) return std::unexpected(rope.error());
  auto tied = config.boolean_or("tie_word_embeddings", false);
  if (!tied) return std::unexpected(tied.error());
  auto window = windows(config, sizes->layers);
  if (!window) return std::unexpected(window.error());

  ModelSpec spec = build_decoder(*sizes, kTraits, hugging_face_names(kTraits), *tied);
  spec.ropes.push_back(std::move(*rope));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].attention().rope = 0;
    spec.layers[i].attention().window = (*window)[i];
  }
  return spec;
}

Result<ModelSpec> qwen3_from_gguf(const GgufConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto rope = gguf_rope(config, sizes->head_dim, kDefaultTheta);
  if (!rope) return std::unexpected(rope.error());
  const bool tied = config.file().find("output.weight") == nullptr;
  ModelSpec spec = build_decoder(*sizes, kTraits, gguf_names(), tied);
  spec.ropes.push_back(std::move(*rope));
  for (auto& layer : spec.layers) layer.attention().rope = 0;
  return spec;
}

}  // namespace quire::model
