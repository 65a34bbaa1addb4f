// Qwen3.5 (dense): three layers of the gated delta rule to one of full attention, whose heads have output gates and
// turn a quarter of their dimensions; norms with weights 1 + w, but for the one behind the rule. Source: transformers'
// Qwen3_5ForCausalLM. GGUF files (`qwen35`) hold the norms with the 1 already added, the rates of decay themselves, and
// the heads of values that share a key head apart.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000000;
constexpr double kDefaultRotaryPart = 0.25;
constexpr int kDefaultInterval = 4;  // every fourth layer attends

// Names of the tensors of a recurrent layer in one checkpoint format.
struct DeltaNames {
  std::string qkv, z, a, b, conv, decay, dt_bias, norm, output;
  DecayForm decay_form;
};
const DeltaNames kHuggingFaceNames{.qkv = "linear_attn.in_proj_qkv.weight",
                                   .z = "linear_attn.in_proj_z.weight",
                                   .a = "linear_attn.in_proj_a.weight",
                                   .b = "linear_attn.in_proj_b.weight",
                                   .conv = "linear_attn.conv1d.weight",
                                   .decay = "linear_attn.A_log",
                                   .dt_bias = "linear_attn.dt_bias",
                                   .norm = "linear_attn.norm.weight",
                                   .output = "linear_attn.out_proj.weight",
                                   .decay_form = DecayForm::kLogarithm};
const DeltaNames kGgufNames{.qkv = "attn_qkv.weight",
                            .z = "attn_gate.weight",
                            .a = "ssm_alpha.weight",
                            .b = "ssm_beta.weight",
                            .conv = "ssm_conv1d.weight",
                            .decay = "ssm_a",
                            .dt_bias = "ssm_dt.bias",
                            .norm = "ssm_norm.weight",
                            .output = "ssm_out.weight",
                            .decay_form = DecayForm::kNegated};

GatedDeltaSpec delta_layer(const kernels::GatedDeltaShape& shape, const DeltaNames& names, int layer,
                           const std::string& prefix, int hidden) {
  const int v = shape.value_rows(), h = shape.heads;
  GatedDeltaSpec g;
  g.name = fmt::format("layers.{}.state", layer);
  g.shape = shape;
  g.input = {{{.tensor = prefix + names.qkv, .rows = shape.channels()},
              {.tensor = prefix + names.z, .rows = v},
              {.tensor = prefix + names.a, .rows = h},
              {.tensor = prefix + names.b, .rows = h}},
             hidden};
  g.conv = prefix + names.conv;
  g.decay = prefix + names.decay;
  g.decay_form = names.decay_form;
  g.dt_bias = prefix + names.dt_bias;
  g.norm = {prefix + names.norm, shape.value_dim, 0};
  g.output = {{{.tensor = prefix + names.output, .rows = hidden}}, v, v / shape.key_heads};
  return g;
}

// The file's tensor of q holds a head's query and then its gate.
void add_gates(AttentionSpec& attention) {
  const int d = attention.head_dim;
  MatrixPart& q = attention.qkv.parts.front();
  q.groups = {.size = 2 * d, .first = 0, .count = d};
  MatrixPart gate = q;
  gate.groups->first = d;
  attention.qkv.parts.push_back(std::move(gate));
  attention.gated = true;
}

// What the two formats say in different ways.
struct Hybrid {
  DecoderSizes sizes;
  kernels::GatedDeltaShape delta;
  std::vector<bool> full;  // of each layer: whether it attends
  kernels::RopeParameters rope;
  bool gated = true;  // attention's heads
  bool tied = false;
};

ModelSpec build(Hybrid h, const DecoderTraits& traits, const DecoderNames& names, const DeltaNames& delta) {
  ModelSpec spec = build_decoder(h.sizes, traits, names, h.tied);
  spec.ropes.push_back(std::move(h.rope));
  for (int i = 0; i < h.sizes.layers; ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (h.full[static_cast<size_t>(i)]) {
      layer.attention().rope = 0;
      if (h.gated) add_gates(layer.attention());
    } else {
      layer.mixer = delta_layer(h.delta, delta, i, fmt::format(fmt::runtime(names.layer), i), h.sizes.hidden);
    }
  }
  return spec;
}

DecoderTraits traits() { return {.architecture = "qwen3_5", .qk_norm = true}; }

std::vector<bool> every(int interval, int layers) {
  std::vector<bool> full;
  for (int i = 0; i < layers; ++i) full.push_back((i + 1) % interval == 0);
  return full;
}

Result<std::vector<bool>> full_layers(const HuggingFaceConfig& config, int layers) {
  if (!config.has("layer_types")) {
    auto interval = config.integer_or("full_attention_interval", 1, kMaxLayers, kDefaultInterval);
    if (!interval) return std::unexpected(interval.error());
    return every(*interval, layers);
  }
  auto types = config.strings("layer_types");
  if (!types) return std::unexpected(types.error());
  if (types->size() != static_cast<size_t>(layers))
    return fail(ErrorKind::kCorruptFile,
                fmt::format("layer_types must have one entry a layer, {}, not {}", layers, types->size()),
                "layer_types");
  std::vector<bool> full;
  for (const std::string& type : *types) {
    if (type != "full_attention" && type != "linear_attention")
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("layer type {} is not supported; supported are full_attention and linear_attention", type),
          "layer_types");
    full.push_back(type == "full_attention");
  }
  return full;
}

Result<kernels::GatedDeltaShape> delta_shape(const HuggingFaceConfig& config) {
  kernels::GatedDeltaShape s;
  const std::pair<const char*, int*> sizes[] = {{"linear_num_value_heads", &s.heads},
                                                {"linear_num_key_heads", &s.key_heads},
                                                {"linear_key_head_dim", &s.key_dim},
                                                {"linear_value_head_dim", &s.value_dim},
                                                {"linear_conv_kernel_dim", &s.conv_width}};
  for (const auto& [key, to] : sizes) {
    auto value = config.integer(key, 1, kMaxHeads);
    if (!value) return std::unexpected(value.error());
    *to = *value;
  }
  if (auto ok = kernels::check_gated_delta_shape(s); !ok) return std::unexpected(ok.error());
  return s;
}

Result<kernels::GatedDeltaShape> delta_shape(const GgufConfig& config) {
  kernels::GatedDeltaShape s{.tiled = true};
  int width = 0;
  const std::pair<const char*, int*> sizes[] = {{"ssm.time_step_rank", &s.heads},
                                                {"ssm.group_count", &s.key_heads},
                                                {"ssm.state_size", &s.key_dim},
                                                {"ssm.inner_size", &width},
                                                {"ssm.conv_kernel", &s.conv_width}};
  for (const auto& [key, to] : sizes) {
    auto value = config.integer(key, 1, kMaxWidth);
    if (!value) return std::unexpected(value.error());
    *to = *value;
  }
  s.value_dim = width / s.heads;
  if (width % s.heads != 0)
    return fail(ErrorKind::kCorruptFile,
                fmt::format("ssm.inner_size {} is no multiple of the {} heads of ssm.time_step_rank", width, s.heads),
                "ssm.inner_size");
  if (auto ok = kernels::check_gated_delta_shape(s); !ok) return std::unexpected(ok.error());
  return s;
}

}  // namespace

Result<ModelSpec> qwen3_5_from_hugging_face(const HuggingFaceConfig& config) {
  Hybrid h;
  auto bias = config.boolean_or("attention_bias", false);
  if (!bias) return std::unexpected(bias.error());
  if (*bias) return fail(ErrorKind::kUnsupported, "attention_bias is not supported", "attention_bias");
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  std::optional<Error> error;
  take(decoder_sizes(config), h.sizes, error);
  take(delta_shape(config), h.delta, error);
  take(config.boolean_or("attn_output_gate", true), h.gated, error);
  take(config.boolean_or("tie_word_embeddings", false), h.tied, error);
  if (error) return std::unexpected(*error);
  take(full_layers(config, h.sizes.layers), h.full, error);
  take(hugging_face_rope(config, "", h.sizes.head_dim, kDefaultTheta, kDefaultRotaryPart), h.rope, error);
  if (error) return std::unexpected(*error);
  DecoderTraits t = traits();
  t.norm_offset = 1;
  return build(std::move(h), t, hugging_face_names(t), kHuggingFaceNames);
}

Result<ModelSpec> qwen3_5_from_gguf(const GgufConfig& config) {
  Hybrid h;
  h.tied = config.file().find("output.weight") == nullptr;
  int interval = 0;
  std::optional<Error> error;
  take(decoder_sizes(config), h.sizes, error);
  take(delta_shape(config), h.delta, error);
  take(config.integer_or("full_attention_interval", 1, kMaxLayers, kDefaultInterval), interval, error);
  if (error) return std::unexpected(*error);
  take(gguf_rope(config, h.sizes.head_dim, kDefaultTheta), h.rope, error);
  if (error) return std::unexpected(*error);
  h.full = every(interval, h.sizes.layers);
  const DecoderTraits t = traits();
  DecoderNames names = gguf_names(t);
  names.mlp_norm = "post_attention_norm.weight";
  return build(std::move(h), t, names, kGgufNames);
}

}  // namespace quire::model
