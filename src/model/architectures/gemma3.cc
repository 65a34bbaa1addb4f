// Gemma 3 (text): five window layers to one full layer, each kind with a rope of its own; norms before and behind
// attention and MLP, with weights 1 + w; q/k norms; tanh GELU; embeddings times sqrt(hidden size); the head is tied.
// Source: transformers' Gemma3ForCausalLM. GGUF files hold the norms with the 1 already added.
#include <cmath>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kLocalTheta = 10000;
constexpr double kGlobalTheta = 1000000;
constexpr int kDefaultPattern = 6;  // every sixth layer is full
constexpr int kGlobalRope = 0, kLocalRope = 1;

DecoderTraits traits() {
  return {.architecture = "gemma3",
          .activation = Activation::kGeluTanh,
          .qk_norm = true,
          .post_norms = true,
          .scale_embeddings = true};
}

// Which layers are full.
Result<std::vector<bool>> full_layers(const HuggingFaceConfig& config, int layers) {
  auto windowed = windowed_layers(config, layers);
  if (!windowed) return windowed;
  if (!windowed->empty()) {
    windowed->flip();
    return windowed;
  }
  std::vector<bool> full;
  auto pattern = config.integer_or("sliding_window_pattern", 1, kMaxLayers, kDefaultPattern);
  if (!pattern) return std::unexpected(pattern.error());
  for (int i = 0; i < layers; ++i) full.push_back((i + 1) % *pattern == 0);
  return full;
}

void set_layers(ModelSpec& spec, const std::vector<bool>& full, int window) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    AttentionSpec& attention = spec.layers[i].attention();
    attention.window = full[i] ? 0 : window;
    attention.rope = full[i] ? kGlobalRope : kLocalRope;
  }
}

// The local rope: rope_parameters/sliding_attention, or the older rope_local_base_freq without scaling.
Result<kernels::RopeParameters> local_rope(const HuggingFaceConfig& config, int head_dim) {
  if (config.has("rope_parameters")) return hugging_face_rope(config, "sliding_attention", head_dim, kLocalTheta);
  auto theta = config.number_or("rope_local_base_freq", kLocalTheta);
  if (!theta) return std::unexpected(theta.error());
  if (!(*theta > 1))
    return fail(ErrorKind::kCorruptFile, "rope_local_base_freq must be greater than 1", "rope_local_base_freq");
  return kernels::RopeParameters{.theta = *theta, .rotary_dim = head_dim};
}

Result<void> refuse_caps(const HuggingFaceConfig& config) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (config.has(key)) return fail(ErrorKind::kUnsupported, std::string(key) + " is not supported", key);
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) {
    auto flag = config.boolean_or(key, false);
    if (!flag) return std::unexpected(flag.error());
    if (*flag) return fail(ErrorKind::kUnsupported, std::string(key) + " is not supported", key);
  }
  return {};
}

}  // namespace

Result<ModelSpec> gemma3_from_hugging_face(const HuggingFaceConfig& config) {
  if (auto refused = refuse_caps(config); !refused) return std::unexpected(refused.error());
  if (auto gelu = require_activation(config, "hidden_activation", "gelu_pytorch_tanh"); !gelu)
    return std::unexpected(gelu.error());
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto full = full_layers(config, sizes->layers);
  if (!full) return std::unexpected(full.error());
  auto window = config.integer("sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto scalar = config.number_or("query_pre_attn_scalar", 256);
  if (!scalar) return std::unexpected(scalar.error());
  if (!(*scalar > 0))
    return fail(ErrorKind::kCorruptFile, "query_pre_attn_scalar must be positive", "query_pre_attn_scalar");
  auto global = hugging_face_rope(config, "full_attention", sizes->head_dim, kGlobalTheta);
  if (!global) return std::unexpected(global.error());
  auto local = local_rope(config, sizes->head_dim);
  if (!local) return std::unexpected(local.error());
  auto tied = config.boolean_or("tie_word_embeddings", true);
  if (!tied) return std::unexpected(tied.error());

  DecoderTraits t = traits();
  t.norm_offset = 1;
  t.attention_scale = static_cast<float>(1 / std::sqrt(*scalar));
  ModelSpec spec = build_decoder(*sizes, t, hugging_face_names(t), *tied);
  spec.ropes = {std::move(*global), std::move(*local)};
  set_layers(spec, *full, *window);
  return spec;
}

Result<ModelSpec> gemma3_from_gguf(const GgufConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto window = config.integer("attention.sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto global = gguf_rope(config, sizes->head_dim, kGlobalTheta);
  if (!global) return std::unexpected(global.error());
  auto local_theta = config.number_or("rope.freq_base_swa", kLocalTheta);
  if (!local_theta) return std::unexpected(local_theta.error());
  if (!(*local_theta > 1)) return fail(ErrorKind::kCorruptFile, "rope.freq_base_swa must be greater than 1");
  const kernels::RopeParameters local{.theta = *local_theta, .rotary_dim = global->rotary_dim};
  const bool tied = config.file().find("output.weight") == nullptr;

  ModelSpec spec = build_decoder(*sizes, traits(), gguf_names(), tied);
  spec.ropes = {std::move(*global), local};
  std::vector<bool> full;
  for (int i = 0; i < sizes->layers; ++i) full.push_back((i + 1) % kDefaultPattern == 0);
  set_layers(spec, full, *window);
  return spec;
}

}  // namespace quire::model
