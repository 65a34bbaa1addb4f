#include "model/architectures/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace quire::model {
namespace {

// Of Qwen2 and Qwen3.
constexpr int kDefaultWindow = 4096, kDefaultFirstWindow = 28;

// What the two formats call the same things.
struct SizeKeys {
  std::string kv_heads, head_dim, norm_epsilon;
};
const SizeKeys kHuggingFaceKeys{"num_key_value_heads", "head_dim", "rms_norm_eps"};
const SizeKeys kGgufKeys{"attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon"};

// Whether heads and sizes make sense together; names the key at fault.
Result<DecoderSizes> checked(DecoderSizes sizes, const SizeKeys& keys) {
  if (sizes.q_heads % sizes.kv_heads != 0)
    return fail(ErrorKind::kCorruptFile,
                fmt::format("{} {} is no divisor of the {} query heads", keys.kv_heads, sizes.kv_heads, sizes.q_heads),
                keys.kv_heads);
  if (sizes.head_dim % 8 != 0 || sizes.head_dim < 8 || sizes.head_dim > 256)
    return fail(ErrorKind::kUnsupported,
                fmt::format("{} {} (where absent, the hidden size over the heads) is not supported; it must be a "
                            "multiple of 8, from 8 to 256",
                            keys.head_dim, sizes.head_dim),
                keys.head_dim);
  if (auto ok = check_norm_epsilon(keys.norm_epsilon, sizes.norm_epsilon); !ok) return std::unexpected(ok.error());
  return sizes;
}

MatrixPart part(const std::string& prefix, const std::string& name, int rows) {
  return {.tensor = prefix + name, .rows = rows};
}

// The same with a bias beside the weight.
MatrixPart part(const std::string& prefix, const std::string& name, int rows, bool biased) {
  MatrixPart p = part(prefix, name, rows);
  if (biased) p.bias = p.tensor.substr(0, p.tensor.rfind('.') + 1) + "bias";
  return p;
}

}  // namespace

Result<DecoderSizes> decoder_sizes(const HuggingFaceConfig& config, bool has_dense) {
  DecoderSizes s;
  std::optional<Error> error;
  take(config.integer("num_hidden_layers", 1, kMaxLayers), s.layers, error);
  take(config.integer("hidden_size", 1, kMaxWidth), s.hidden, error);
  if (has_dense || config.has("intermediate_size"))
    take(config.integer("intermediate_size", 1, kMaxWidth), s.intermediate, error);
  take(config.integer("num_attention_heads", 1, kMaxHeads), s.q_heads, error);
  take(config.integer("vocab_size", 1, kMaxVocabulary), s.vocab, error);
  take(config.integer("max_position_embeddings", 1, kMaxPositions), s.max_positions, error);
  take(config.number("rms_norm_eps"), s.norm_epsilon, error);
  if (error) return std::unexpected(*error);
  take(config.integer_or("num_key_value_heads", 1, s.q_heads, s.q_heads), s.kv_heads, error);
  take(config.integer_or("head_dim", 1, kMaxHeadDim, s.hidden / s.q_heads), s.head_dim, error);
  if (error) return std::unexpected(*error);
  return checked(s, kHuggingFaceKeys);
}

Result<void> check_norm_epsilon(const std::string& key, float epsilon) {
  if (epsilon > 0 && epsilon < 1) return {};
  return fail(ErrorKind::kCorruptFile, fmt::format("{} must be between 0 and 1, not {}", key, epsilon), key);
}

Result<int> gguf_layers(const GgufConfig& config) {
  auto blocks = config.integer("block_count", 1, kMaxLayers);
  if (!blocks) return blocks;
  auto ahead = config.integer_or("nextn_predict_layers", 0, kMaxLayers, 0);
  if (!ahead) return ahead;
  if (*ahead >= *blocks)
    return fail(ErrorKind::kCorruptFile, "block_count must be greater than nextn_predict_layers", "block_count");
  return *blocks - *ahead;
}

Result<DecoderSizes> decoder_sizes(const GgufConfig& config, bool has_dense) {
  DecoderSizes s;
  std::optional<Error> error;
  take(gguf_layers(config), s.layers, error);
  take(config.integer("embedding_length", 1, kMaxWidth), s.hidden, error);
  if (has_dense || config.has("feed_forward_length"))
    take(config.integer("feed_forward_length", 1, kMaxWidth), s.intermediate, error);
  take(config.integer("attention.head_count", 1, kMaxHeads), s.q_heads, error);
  take(config.integer("context_length", 1, kMaxPositions), s.max_positions, error);
  take(config.number("attention.layer_norm_rms_epsilon"), s.norm_epsilon, error);
  take(config.vocab_size(), s.vocab, error);
  if (error) return std::unexpected(*error);
  take(config.integer_or("attention.head_count_kv", 1, s.q_heads, s.q_heads), s.kv_heads, error);
  take(config.integer_or("attention.key_length", 1, kMaxHeadDim, s.hidden / s.q_heads), s.head_dim, error);
  int value_length = 0;
  take(config.integer_or("attention.value_length", 1, kMaxHeadDim, s.head_dim), value_length, error);
  if (error) return std::unexpected(*error);
  if (value_length != s.head_dim)
    return fail(ErrorKind::kUnsupported, "key and value heads of different sizes are not supported",
                "attention.value_length");
  return checked(s, kGgufKeys);
}

DecoderNames hugging_face_names(const DecoderTraits& traits) {
  DecoderNames n;
  const std::string& root = traits.root;
  n.embedding = root + "embed_tokens.weight";
  n.final_norm = root + "norm.weight";
  // "language_model.model." has its head at "language_model.lm_head.weight", "model.language_model." at
  // "lm_head.weight".
  n.head = (root.ends_with(".model.") ? root.substr(0, root.size() - 6) : "") + "lm_head.weight";
  n.layer = root + "layers.{}.";
  n.attention_norm = "input_layernorm.weight";
  n.q = "self_attn.q_proj.weight";
  n.k = "self_attn.k_proj.weight";
  n.v = "self_attn.v_proj.weight";
  n.q_norm = "self_attn.q_norm.weight";
  n.k_norm = "self_attn.k_norm.weight";
  if (traits.fused) n.qkv = "self_attn.qkv_proj.weight", n.gate_up = "mlp.gate_up_proj.weight";
  n.o = "self_attn.o_proj.weight";
  n.sinks = "self_attn.sinks";
  n.attention_post_norm = "post_attention_layernorm.weight";
  n.mlp_norm = traits.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
  n.gate = "mlp.gate_proj.weight";
  n.up = "mlp.up_proj.weight";
  n.down = "mlp.down_proj.weight";
  n.mlp_post_norm = "post_feedforward_layernorm.weight";
  return n;
}

DecoderNames gguf_names(const DecoderTraits& traits) {
  DecoderNames n;
  n.embedding = "token_embd.weight";
  n.final_norm = "output_norm.weight";
  n.head = "output.weight";
  n.layer = "blk.{}.";
  n.attention_norm = "attn_norm.weight";
  n.q = "attn_q.weight";
  n.k = "attn_k.weight";
  n.v = "attn_v.weight";
  n.q_norm = "attn_q_norm.weight";
  n.k_norm = "attn_k_norm.weight";
  if (traits.fused) n.qkv = "attn_qkv.weight", n.gate_up = "ffn_up.weight";
  n.o = "attn_output.weight";
  n.sinks = "attn_sinks.weight";
  n.attention_post_norm = "post_attention_norm.weight";
  n.mlp_norm = "ffn_norm.weight";
  n.gate = "ffn_gate.weight";
  n.up = "ffn_up.weight";
  n.down = "ffn_down.weight";
  n.mlp_post_norm = "post_ffw_norm.weight";
  return n;
}

ModelSpec build_decoder(const DecoderSizes& s, const DecoderTraits& traits, const DecoderNames& names, bool tied_head) {
  ModelSpec spec;
  spec.architecture = traits.architecture;
  spec.hidden_size = s.hidden;
  spec.vocab_size = s.vocab;
  spec.max_positions = s.max_positions;
  spec.norm_epsilon = s.norm_epsilon;
  spec.scale_embeddings = traits.scale_embeddings;
  spec.logit_soft_cap = traits.logit_soft_cap;
  spec.embedding = names.embedding;
  spec.final_norm = {names.final_norm, s.hidden, traits.norm_offset};
  spec.head = {{{.tensor = tied_head ? names.embedding : names.head, .rows = s.vocab}}, s.hidden};

  const int q_rows = s.q_heads * s.head_dim, kv_rows = s.kv_heads * s.head_dim;
  for (int i = 0; i < s.layers; ++i) {
    const std::string prefix = fmt::format(fmt::runtime(names.layer), i);
    const auto norm = [&](const std::string& name, int size) {
      return NormSpec{prefix + name, size, traits.norm_offset};
    };
    LayerSpec layer;
    layer.attention_norm = norm(names.attention_norm, s.hidden);
    layer.mlp_norm = norm(names.mlp_norm, s.hidden);

    AttentionSpec& a = layer.attention();
    a.name = fmt::format("layers.{}.attention", i);
    a.q_heads = s.q_heads;
    a.kv_heads = s.kv_heads;
    a.head_dim = s.head_dim;
    a.scale = traits.attention_scale > 0 ? traits.attention_scale
                                         : static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
    a.soft_cap = traits.attention_soft_cap;
    if (traits.fused)
      a.qkv = {{part(prefix, names.qkv, q_rows + 2 * kv_rows, traits.qkv_bias)}, s.hidden};
    else
      a.qkv = {{part(prefix, names.q, q_rows, traits.qkv_bias), part(prefix, names.k, kv_rows, traits.qkv_bias),
                part(prefix, names.v, kv_rows, traits.qkv_bias)},
               s.hidden};
    if (traits.interleaved_qk) a.qkv.parts[0].interleaved_head_dim = a.qkv.parts[1].interleaved_head_dim = s.head_dim;
    a.output = {{part(prefix, names.o, s.hidden, traits.output_bias)}, q_rows, q_rows / s.kv_heads};
    if (traits.sinks) a.sinks = prefix + names.sinks;
    if (traits.qk_norm) {
      a.q_norm = norm(names.q_norm, s.head_dim);
      a.k_norm = norm(names.k_norm, s.head_dim);
    }

    MlpSpec& mlp = layer.dense();
    mlp.size = s.intermediate;
    mlp.activation = traits.activation;
    if (traits.fused)
      mlp.gate_up = {{part(prefix, names.gate_up, 2 * s.intermediate, traits.mlp_bias)}, s.hidden};
    else
      mlp.gate_up = {{part(prefix, names.gate, s.intermediate, traits.mlp_bias),
                      part(prefix, names.up, s.intermediate, traits.mlp_bias)},
                     s.hidden};
    mlp.down = {{part(prefix, names.down, s.hidden, traits.mlp_bias)}, s.intermediate, 1};
    if (traits.post_norms) {
      layer.attention_post_norm = norm(names.attention_post_norm, s.hidden);
      layer.mlp_post_norm = norm(names.mlp_post_norm, s.hidden);
    }
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

Result<void> read_biases(const HuggingFaceConfig& config, DecoderTraits& traits) {
  auto attention = config.boolean_or("attention_bias", false);
  if (!attention) return std::unexpected(attention.error());
  auto mlp = config.boolean_or("mlp_bias", false);
  if (!mlp) return std::unexpected(mlp.error());
  traits.qkv_bias = traits.output_bias = *attention;
  traits.mlp_bias = *mlp;
  return {};
}

Result<ModelSpec> plain_decoder(const HuggingFaceConfig& config, const DecoderTraits& traits, double default_theta) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  auto rope = hugging_face_rope(config, "", sizes->head_dim, default_theta);
  if (!rope) return std::unexpected(rope.error());
  auto tied = config.boolean_or("tie_word_embeddings", traits.tied_head);
  if (!tied) return std::unexpected(tied.error());
  ModelSpec spec = build_decoder(*sizes, traits, hugging_face_names(traits), *tied);
  spec.ropes.push_back(std::move(*rope));
  for (auto& layer : spec.layers) layer.attention().rope = 0;
  return spec;
}

Result<ModelSpec> plain_decoder(const GgufConfig& config, const DecoderTraits& traits) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto rope = gguf_rope(config, sizes->head_dim);
  if (!rope) return std::unexpected(rope.error());
  // Loading undoes the interleaving of whole heads, which would part pairs from dimensions that do not turn.
  if (traits.interleaved_qk && rope->rotary_dim != sizes->head_dim)
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope.dimension_count {} is not supported; it must be the head size, {}", rope->rotary_dim,
                            sizes->head_dim),
                "rope.dimension_count");
  const bool tied = config.file().find("output.weight") == nullptr;
  ModelSpec spec = build_decoder(*sizes, traits, gguf_names(traits), tied);
  spec.ropes.push_back(std::move(*rope));
  for (auto& layer : spec.layers) layer.attention().rope = 0;
  return spec;
}

Result<void> require_activation(const HuggingFaceConfig& config, const char* key, const std::string& only) {
  auto activation = config.string_or(key, only);
  if (!activation) return std::unexpected(activation.error());
  if (*activation != only)
    return fail(ErrorKind::kUnsupported, fmt::format("{} {} is not supported; it must be {}", key, *activation, only),
                key);
  return {};
}

Result<std::vector<bool>> layers_of_type(const HuggingFaceConfig& config, const std::string& key, int layers,
                                         const std::string& type, const std::string& other) {
  std::vector<bool> chosen;
  if (!config.has(key)) return chosen;
  auto types = config.strings(key);
  if (!types) return std::unexpected(types.error());
  if (types->size() != static_cast<size_t>(layers))
    return fail(ErrorKind::kCorruptFile,
                fmt::format("{} must have one entry a layer, {}, not {}", key, layers, types->size()), key);
  for (const auto& named : *types) {
    if (named != type && named != other) {
      const auto& [first, second] = std::minmax(type, other);
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("layer type {} in {} is not supported; supported are {} and {}", named, key, first, second), key);
    }
    chosen.push_back(named == type);
  }
  return chosen;
}

std::vector<bool> every_nth(int n, int layers) {
  std::vector<bool> chosen;
  for (int i = 0; i < layers; ++i) chosen.push_back((i + 1) % n == 0);
  return chosen;
}

Result<std::vector<int>> layers_with_rope(const HuggingFaceConfig& config, int layers, int default_interval) {
  auto interval = config.integer_or("no_rope_layer_interval", 1, kMaxLayers, default_interval);
  if (!interval) return std::unexpected(interval.error());
  if (config.has_content("no_rope_layers")) {
    auto listed = config.integers("no_rope_layers", 0, 1);
    if (listed && listed->size() != static_cast<size_t>(layers))
      return fail(ErrorKind::kCorruptFile,
                  fmt::format("no_rope_layers must have one entry a layer, {}, not {}", layers, listed->size()),
                  "no_rope_layers");
    return listed;
  }
  std::vector<int> out;
  for (bool without : every_nth(*interval, layers)) out.push_back(without ? 0 : 1);
  return out;
}

Result<std::vector<bool>> windowed_layers(const HuggingFaceConfig& config, int layers) {
  return layers_of_type(config, "layer_types", layers, "sliding_attention", "full_attention");
}

Result<int> window_in_use(const HuggingFaceConfig& config, int default_window) {
  const char* key = "sliding_window";
  auto use = config.boolean_or("use_sliding_window", false);
  if (!use) return std::unexpected(use.error());
  int window = config.is_null(key) ? 0 : default_window;
  if (config.has(key)) {
    auto read = config.integer(key, *use ? 1 : 0, kMaxPositions);
    if (!read) return read;
    window = *read;
  }
  return *use ? window : 0;
}

Result<std::vector<int>> chosen_windows(const HuggingFaceConfig& config, std::vector<bool> chosen, int default_window) {
  auto windowed = windowed_layers(config, static_cast<int>(chosen.size()));
  if (!windowed) return std::unexpected(windowed.error());
  auto window = window_in_use(config, default_window);
  if (!window) return std::unexpected(window.error());
  if (*window == 0 && std::ranges::find(*windowed, true) != windowed->end())
    return fail(ErrorKind::kUnsupported,
                "layer_types asks for windows, which use_sliding_window or sliding_window turns off", "layer_types");
  if (!windowed->empty()) chosen = std::move(*windowed);
  std::vector<int> out;
  for (bool has_window : chosen) out.push_back(has_window ? *window : 0);
  return out;
}

Result<std::vector<int>> later_windows(const HuggingFaceConfig& config, int layers) {
  auto first = config.integer_or("max_window_layers", 0, kMaxPositions, kDefaultFirstWindow);
  if (!first) return std::unexpected(first.error());
  std::vector<bool> chosen;
  for (int i = 0; i < layers; ++i) chosen.push_back(i >= *first);
  return chosen_windows(config, std::move(chosen), kDefaultWindow);
}

Result<int> window_or_null(const HuggingFaceConfig& config) {
  if (config.is_null("sliding_window")) return 0;
  return config.integer("sliding_window", 1, kMaxPositions);
}

void set_windows(ModelSpec& spec, int window) { set_windows(spec, std::vector<int>(spec.layers.size(), window)); }

void set_windows(ModelSpec& spec, const std::vector<int>& windows) {
  for (size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].attention().window = windows[i];
}

}  // namespace quire::model
