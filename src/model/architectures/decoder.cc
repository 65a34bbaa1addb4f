#include "model/architectures/decoder.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

namespace quire::model {
namespace {

// Whether heads and sizes make sense together; names the key at fault.
Result<DecoderSizes> checked(DecoderSizes sizes) {
  if (sizes.q_heads % sizes.kv_heads != 0)
    return fail(ErrorKind::kCorruptFile,
                fmt::format("{} query heads are no multiple of {} key and value heads", sizes.q_heads, sizes.kv_heads),
                "num_key_value_heads");
  if (sizes.head_dim % 8 != 0 || sizes.head_dim < 8 || sizes.head_dim > 256)
    return fail(ErrorKind::kUnsupported,
                fmt::format("head_dim {} (attention.key_length in GGUF; where absent, the hidden size over the heads) "
                            "is not supported; it must be a multiple of 8, from 8 to 256",
                            sizes.head_dim),
                "head_dim");
  if (!(sizes.norm_epsilon > 0 && sizes.norm_epsilon < 1))
    return fail(ErrorKind::kCorruptFile, "the norm's epsilon must be between 0 and 1", "rms_norm_eps");
  return sizes;
}

MatrixPart part(const std::string& prefix, const std::string& name, int rows) { return {prefix + name, rows, 0}; }

}  // namespace

Result<DecoderSizes> decoder_sizes(const HuggingFaceConfig& config) {
  DecoderSizes s;
  std::optional<Error> error;
  take(config.integer("num_hidden_layers", 1, kMaxLayers), s.layers, error);
  take(config.integer("hidden_size", 1, kMaxWidth), s.hidden, error);
  take(config.integer("intermediate_size", 1, kMaxWidth), s.intermediate, error);
  take(config.integer("num_attention_heads", 1, kMaxHeads), s.q_heads, error);
  take(config.integer("vocab_size", 1, kMaxVocabulary), s.vocab, error);
  take(config.integer("max_position_embeddings", 1, kMaxPositions), s.max_positions, error);
  take(config.number("rms_norm_eps"), s.norm_epsilon, error);
  if (error) return std::unexpected(*error);
  take(config.integer_or("num_key_value_heads", 1, s.q_heads, s.q_heads), s.kv_heads, error);
  take(config.integer_or("head_dim", 1, kMaxHeadDim, s.hidden / s.q_heads), s.head_dim, error);
  if (error) return std::unexpected(*error);
  return checked(s);
}

Result<DecoderSizes> decoder_sizes(const GgufConfig& config) {
  DecoderSizes s;
  std::optional<Error> error;
  take(config.integer("block_count", 1, kMaxLayers), s.layers, error);
  take(config.integer("embedding_length", 1, kMaxWidth), s.hidden, error);
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
  return checked(s);
}

DecoderNames hugging_face_names(const DecoderTraits& traits) {
  DecoderNames n;
  n.embedding = "model.embed_tokens.weight";
  n.final_norm = "model.norm.weight";
  n.head = "lm_head.weight";
  n.layer = "model.layers.{}.";
  n.attention_norm = "input_layernorm.weight";
  n.q = "self_attn.q_proj.weight";
  n.k = "self_attn.k_proj.weight";
  n.v = "self_attn.v_proj.weight";
  n.q_norm = "self_attn.q_norm.weight";
  n.k_norm = "self_attn.k_norm.weight";
  n.o = "self_attn.o_proj.weight";
  n.attention_post_norm = "post_attention_layernorm.weight";
  n.mlp_norm = traits.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
  n.gate = "mlp.gate_proj.weight";
  n.up = "mlp.up_proj.weight";
  n.down = "mlp.down_proj.weight";
  n.mlp_post_norm = "post_feedforward_layernorm.weight";
  return n;
}

DecoderNames gguf_names() {
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
  n.o = "attn_output.weight";
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
  spec.embedding = names.embedding;
  spec.final_norm = {names.final_norm, s.hidden, traits.norm_offset};
  spec.head = {{{tied_head ? names.embedding : names.head, s.vocab, 0}}, s.hidden};

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
    a.qkv = {{part(prefix, names.q, q_rows), part(prefix, names.k, kv_rows), part(prefix, names.v, kv_rows)}, s.hidden};
    if (traits.interleaved_qk) a.qkv.parts[0].interleaved_head_dim = a.qkv.parts[1].interleaved_head_dim = s.head_dim;
    a.output = {{part(prefix, names.o, s.hidden)}, q_rows, q_rows / s.kv_heads};
    if (traits.qk_norm) {
      a.q_norm = norm(names.q_norm, s.head_dim);
      a.k_norm = norm(names.k_norm, s.head_dim);
    }

    layer.mlp = {s.intermediate,
                 traits.activation,
                 {{part(prefix, names.gate, s.intermediate), part(prefix, names.up, s.intermediate)}, s.hidden},
                 {{part(prefix, names.down, s.hidden)}, s.intermediate, 1}};
    if (traits.post_norms) {
      layer.attention_post_norm = norm(names.attention_post_norm, s.hidden);
      layer.mlp_post_norm = norm(names.mlp_post_norm, s.hidden);
    }
    spec.layers.push_back(std::move(layer));
  }
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

Result<std::vector<bool>> windowed_layers(const HuggingFaceConfig& config, int layers) {
  std::vector<bool> windowed;
  if (!config.has("layer_types")) return windowed;
  auto types = config.strings("layer_types");
  if (!types) return std::unexpected(types.error());
  if (types->size() != static_cast<size_t>(layers))
    return fail(ErrorKind::kCorruptFile,
                fmt::format("layer_types must have one entry a layer, {}, not {}", layers, types->size()),
                "layer_types");
  for (const auto& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("layer type {} is not supported; supported are full_attention and sliding_attention", type),
          "layer_types");
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

Result<kernels::RopeParameters> hugging_face_rope(const HuggingFaceConfig& config, const std::string& section,
                                                  int head_dim, double default_theta) {
  const auto is_new = config.has_section("rope_parameters");
  if (!is_new) return std::unexpected(is_new.error());
  const std::string root = !*is_new          ? "rope_scaling"
                           : section.empty() ? "rope_parameters"
                                             : "rope_parameters/" + section;
  const auto has_root = config.has_section(root);
  if (!has_root) return std::unexpected(has_root.error());
  if (*is_new && !*has_root)
    return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} is missing", root), root);
  const std::string theta_key = *is_new ? root + "/rope_theta" : "rope_theta";
  kernels::RopeParameters rope;
  rope.rotary_dim = head_dim;
  std::optional<Error> error;
  take(config.number_or(theta_key, default_theta), rope.theta, error);
  std::string type = "default";
  const std::string type_key = config.has(root + "/rope_type") ? root + "/rope_type" : root + "/type";
  take(config.string_or(type_key, "default"), type, error);
  if (error) return std::unexpected(*error);
  if (!(rope.theta > 1)) return fail(ErrorKind::kCorruptFile, "rope_theta must be greater than 1", theta_key);

  if (type == "default") return rope;
  if (type == "linear") {
    rope.type = kernels::RopeType::kLinear;
    take(config.number(root + "/factor"), rope.factor, error);
  } else if (type == "llama3") {
    rope.type = kernels::RopeType::kLlama3;
    take(config.number(root + "/factor"), rope.factor, error);
    take(config.number(root + "/low_freq_factor"), rope.low_freq_factor, error);
    take(config.number(root + "/high_freq_factor"), rope.high_freq_factor, error);
    take(config.integer(root + "/original_max_position_embeddings", 1, kMaxPositions), rope.original_max_position,
         error);
  } else {
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope type {} is not supported; supported are default, linear and llama3", type), type_key);
  }
  if (error) return std::unexpected(*error);
  if (!(rope.factor > 0)) return fail(ErrorKind::kCorruptFile, "the rope factor must be positive", root + "/factor");
  if (rope.type == kernels::RopeType::kLlama3 && !(rope.high_freq_factor > rope.low_freq_factor))
    return fail(ErrorKind::kCorruptFile, "high_freq_factor must be greater than low_freq_factor",
                root + "/high_freq_factor");
  return rope;
}

Result<kernels::RopeParameters> gguf_rope(const GgufConfig& config, int head_dim, double default_theta) {
  kernels::RopeParameters rope;
  rope.rotary_dim = head_dim;
  std::optional<Error> error;
  int rotary = 0;
  std::string scaling = "none";
  take(config.number_or("rope.freq_base", default_theta), rope.theta, error);
  take(config.integer_or("rope.dimension_count", 2, head_dim, head_dim), rotary, error);
  take(config.string_or("rope.scaling.type", "none"), scaling, error);
  if (error) return std::unexpected(*error);
  rope.rotary_dim = rotary;
  if (rotary % 2 != 0)
    return fail(ErrorKind::kCorruptFile, "rope.dimension_count must be even", "rope.dimension_count");
  if (!(rope.theta > 1))
    return fail(ErrorKind::kCorruptFile, "rope.freq_base must be greater than 1", "rope.freq_base");
  if (scaling == "linear") {
    rope.type = kernels::RopeType::kLinear;
    take(config.number("rope.scaling.factor"), rope.factor, error);
    if (error) return std::unexpected(*error);
    if (!(rope.factor > 0)) return fail(ErrorKind::kCorruptFile, "rope.scaling.factor must be positive");
  } else if (scaling != "none") {
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope scaling {} is not supported; supported are none and linear", scaling),
                "rope.scaling.type");
  }
  // Converters write Llama 3's scaling as divisors of each frequency.
  if (const weights::Tensor* factors = config.file().find("rope_freqs.weight")) {
    if (factors->format != weights::WeightFormat::kF32 || factors->elements() != rotary / 2)
      return fail(ErrorKind::kCorruptFile,
                  fmt::format("tensor rope_freqs.weight must hold {} F32 values, it is {}", rotary / 2,
                              weights::describe(*factors)),
                  "rope_freqs.weight");
    rope.frequency_divisors.resize(static_cast<size_t>(rotary / 2));
    std::memcpy(rope.frequency_divisors.data(), factors->data.data(), factors->data.size());
    for (float divisor : rope.frequency_divisors)
      if (!(divisor > 0))
        return fail(ErrorKind::kCorruptFile, "rope_freqs.weight holds a divisor that is not positive");
  }
  return rope;
}

}  // namespace quire::model
