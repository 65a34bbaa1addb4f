// Gemma 2 and 3 (text): norms before and behind attention and MLP, with weights 1 + w; tanh GELU; embeddings times
// sqrt(hidden size); a tied head. Gemma 2 has a window on every other layer and soft caps on attention and logits;
// Gemma 3 five window layers to one full layer, each kind with a rope of its own, and q/k norms. Gemma 3's multimodal
// checkpoints are run as text: what they have for images is left out. Source: transformers' Gemma2ForCausalLM,
// Gemma3ForCausalLM and Gemma3ForConditionalGeneration. GGUF files hold the norms with the 1 already added.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/multimodal.h"

namespace quire::model {
namespace {

constexpr double kLocalTheta = 10000;
constexpr double kGlobalTheta = 1000000;
constexpr int kPattern2 = 2, kPattern3 = 6;  // every such layer is full
constexpr int kGlobalRope = 0, kLocalRope = 1;

// What text_config leaves out.
constexpr std::string_view kGemma3Defaults = R"({
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6, "sliding_window": 4096})";
// What the multimodal configuration says of images.
constexpr std::array<std::string_view, 9> kOfImages = {
    "vision_config",   "mm_tokens_per_image", "image_token_index",
    "boi_token_index", "eoi_token_index",     "image_token_id",
    "boi_token_id",    "eoi_token_id",        "vision_soft_tokens_per_image"};

DecoderTraits traits(const char* architecture, bool qk_norm) {
  return {.architecture = architecture,
          .activation = Activation::kGeluTanh,
          .qk_norm = qk_norm,
          .post_norms = true,
          .scale_embeddings = true,
          .tied_head = true};
}

// Which layers are full: by layer_types, else every so many.
Result<std::vector<bool>> full_layers(const HuggingFaceConfig& config, int layers, int pattern) {
  auto windowed = windowed_layers(config, layers);
  if (!windowed) return windowed;
  if (!windowed->empty()) {
    windowed->flip();
    return windowed;
  }
  return every_nth(pattern, layers);
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

// A soft cap, 0 if the key is null. Absent it is an error where `required`: the reference's default is no 0.
Result<float> soft_cap(const HuggingFaceConfig& config, const char* key, bool required) {
  if (!config.has(key) && (!required || config.is_null(key))) return 0;
  auto cap = config.number(key);
  if (!cap) return std::unexpected(cap.error());
  if (!(*cap > 0)) return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} must be positive", key), key);
  return static_cast<float>(*cap);
}

// 1 / sqrt(query_pre_attn_scalar)
Result<float> query_scale(const HuggingFaceConfig& config) {
  auto scalar = config.number_or("query_pre_attn_scalar", 256);
  if (!scalar) return std::unexpected(scalar.error());
  if (*scalar > 0) return static_cast<float>(1 / std::sqrt(*scalar));
  return fail(ErrorKind::kCorruptFile, "query_pre_attn_scalar must be positive", "query_pre_attn_scalar");
}

// What both have in common of a Hugging Face configuration.
Result<DecoderTraits> read_traits(const HuggingFaceConfig& config, DecoderTraits t, bool needs_caps) {
  auto bidirectional = config.boolean_or("use_bidirectional_attention", false);
  if (!bidirectional) return std::unexpected(bidirectional.error());
  if (*bidirectional)
    return fail(ErrorKind::kUnsupported, "use_bidirectional_attention is not supported", "use_bidirectional_attention");
  if (auto gelu = require_activation(config, "hidden_activation", "gelu_pytorch_tanh"); !gelu)
    return std::unexpected(gelu.error());
  static_cast<void>(config.has("hidden_act"));  // an older spelling, which the reference passes over
  if (auto biases = read_biases(config, t); !biases) return std::unexpected(biases.error());
  std::optional<Error> error;
  take(soft_cap(config, "attn_logit_softcapping", needs_caps), t.attention_soft_cap, error);
  take(soft_cap(config, "final_logit_softcapping", needs_caps), t.logit_soft_cap, error);
  take(query_scale(config), t.attention_scale, error);
  take(config.boolean_or("tie_word_embeddings", true), t.tied_head, error);
  if (error) return std::unexpected(*error);
  t.norm_offset = 1;
  return t;
}

Result<ModelSpec> gemma3(const HuggingFaceConfig& config, const std::string& root) {
  auto t = read_traits(config, traits("gemma3", true), false);
  if (!t) return std::unexpected(t.error());
  t->root = root;
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto pattern = config.integer_or("sliding_window_pattern", 1, kMaxLayers, kPattern3);
  if (!pattern) return std::unexpected(pattern.error());
  auto full = full_layers(config, sizes->layers, *pattern);
  if (!full) return std::unexpected(full.error());
  auto window = config.integer("sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto global = hugging_face_rope(config, "full_attention", sizes->head_dim, kGlobalTheta);
  if (!global) return std::unexpected(global.error());
  auto local = local_rope(config, sizes->head_dim);
  if (!local) return std::unexpected(local.error());

  ModelSpec spec = build_decoder(*sizes, *t, hugging_face_names(*t), t->tied_head);
  spec.ropes = {std::move(*global), std::move(*local)};
  set_layers(spec, *full, *window);
  return spec;
}

// GGUF does not say the query's scale: it is 1 / sqrt(head_dim), but for the model of so many layers, 27B, which has
// the hidden size over the heads.
float gguf_query_scale(const DecoderSizes& sizes, int layers_of_27b) {
  const int scalar = sizes.layers == layers_of_27b ? sizes.hidden / sizes.q_heads : sizes.head_dim;
  return static_cast<float>(1 / std::sqrt(static_cast<double>(scalar)));
}

}  // namespace

Result<ModelSpec> gemma2_from_hugging_face(const HuggingFaceConfig& config) {
  auto t = read_traits(config, traits("gemma2", false), true);
  if (!t) return std::unexpected(t.error());
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto full = full_layers(config, sizes->layers, kPattern2);
  if (!full) return std::unexpected(full.error());
  auto window = config.integer("sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto rope = hugging_face_rope(config, "", sizes->head_dim, kLocalTheta);
  if (!rope) return std::unexpected(rope.error());

  ModelSpec spec = build_decoder(*sizes, *t, hugging_face_names(*t), t->tied_head);
  spec.ropes = {*rope, std::move(*rope)};
  set_layers(spec, *full, *window);
  return spec;
}

Result<ModelSpec> gemma3_from_hugging_face(const HuggingFaceConfig& config) { return gemma3(config, "model."); }

Result<ModelSpec> gemma3_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  const std::string root = find_root(tensors, {"model.language_model.", "language_model.model."});
  return make_text_model(config, {kGemma3Defaults, kOfImages},
                         [&](const HuggingFaceConfig& text) { return gemma3(text, root); });
}

Result<ModelSpec> gemma2_from_gguf(const GgufConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto window = config.integer("attention.sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto rope = gguf_rope(config, sizes->head_dim);
  if (!rope) return std::unexpected(rope.error());
  DecoderTraits t = traits("gemma2", false);
  t.attention_scale = gguf_query_scale(*sizes, 46);
  std::optional<Error> error;
  take(config.number("attn_logit_softcapping"), t.attention_soft_cap, error);
  take(config.number("final_logit_softcapping"), t.logit_soft_cap, error);
  if (error) return std::unexpected(*error);
  for (float cap : {t.attention_soft_cap, t.logit_soft_cap})
    if (!(cap > 0))
      return fail(ErrorKind::kCorruptFile, "gemma2's soft caps must be positive", "attn_logit_softcapping");
  const bool tied = config.file().find("output.weight") == nullptr;

  ModelSpec spec = build_decoder(*sizes, t, gguf_names(t), tied);
  spec.ropes = {*rope, std::move(*rope)};
  set_layers(spec, every_nth(kPattern2, sizes->layers), *window);
  return spec;
}

Result<ModelSpec> gemma3_from_gguf(const GgufConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto window = config.integer("attention.sliding_window", 1, kMaxPositions);
  if (!window) return std::unexpected(window.error());
  auto global = gguf_rope(config, sizes->head_dim);
  if (!global) return std::unexpected(global.error());
  auto local_theta = config.number_or("rope.freq_base_swa", kLocalTheta);
  if (!local_theta) return std::unexpected(local_theta.error());
  if (!(*local_theta > 1)) return fail(ErrorKind::kCorruptFile, "rope.freq_base_swa must be greater than 1");
  const kernels::RopeParameters local{.theta = *local_theta, .rotary_dim = global->rotary_dim};
  const bool tied = config.file().find("output.weight") == nullptr;

  DecoderTraits t = traits("gemma3", true);
  t.attention_scale = gguf_query_scale(*sizes, 62);
  ModelSpec spec = build_decoder(*sizes, t, gguf_names(t), tied);
  spec.ropes = {std::move(*global), local};
  set_layers(spec, every_nth(kPattern3, sizes->layers), *window);
  return spec;
}

}  // namespace quire::model
