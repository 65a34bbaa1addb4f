// Qwen3-Next (mixtures of experts) and Qwen3.5 (dense, or mixtures): three layers of the gated delta rule to one of
// full attention, whose heads have output gates and turn a quarter of their dimensions; norms with weights 1 + w, but
// for the one behind the rule. Qwen3.5 is published as text and vision, and run as text. Source: transformers'
// Qwen3NextForCausalLM, Qwen3_5ForConditionalGeneration and Qwen3_5MoeForConditionalGeneration. GGUF files
// (`qwen3next`, `qwen35`, `qwen35moe`) hold the norms with the 1 already added and the rates of decay themselves; those
// of Qwen3.5 the heads of values that share a key head apart.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"
#include "model/architectures/multimodal.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr double kDefaultRotaryPart = 0.25;
constexpr int kDefaultInterval = 4;  // every fourth layer attends

// What text_config leaves out.
constexpr std::string_view kDenseDefaults = R"({
    "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32})";
constexpr std::string_view kMoeDefaults = R"({
    "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512})";
constexpr std::array<std::string_view, 5> kOfImages = {"vision_config", "image_token_id", "video_token_id",
                                                       "vision_start_token_id", "vision_end_token_id"};

// Names of the tensors of a recurrent layer in one checkpoint format.
struct DeltaNames {
  std::string qkv, z, a, b;
  std::string qkvz, ba;  // where the layer has them, instead of those: together for each key head
  std::string conv, decay, dt_bias, norm, output;
  DecayForm decay_form;
};
const DeltaNames kHuggingFaceNames{.qkv = "linear_attn.in_proj_qkv.weight",
                                   .z = "linear_attn.in_proj_z.weight",
                                   .a = "linear_attn.in_proj_a.weight",
                                   .b = "linear_attn.in_proj_b.weight",
                                   .qkvz = "linear_attn.in_proj_qkvz.weight",
                                   .ba = "linear_attn.in_proj_ba.weight",
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
                            .qkvz = "ssm_in.weight",
                            .ba = "ssm_ba.weight",
                            .conv = "ssm_conv1d.weight",
                            .decay = "ssm_a",
                            .dt_bias = "ssm_dt.bias",
                            .norm = "ssm_norm.weight",
                            .output = "ssm_out.weight",
                            .decay_form = DecayForm::kNegated};

// Which tensors a recurrent layer has.
struct DeltaForm {
  bool qkvz = false;
  bool ba = false;
};

std::vector<MatrixPart> delta_inputs(const kernels::GatedDeltaShape& shape, const DeltaNames& names, DeltaForm form,
                                     const std::string& prefix) {
  const int keys = shape.key_dim, heads = shape.heads_per_key(), values = heads * shape.value_dim;
  const auto grouped = [&](const std::string& name, int size, int first, int count) {
    return MatrixPart{
        .tensor = prefix + name, .rows = shape.key_heads * count, .groups = RowGroups{size, first, count}};
  };
  std::vector<MatrixPart> parts;
  if (form.qkvz) {
    const int size = 2 * (keys + values);
    parts = {grouped(names.qkvz, size, 0, keys), grouped(names.qkvz, size, keys, keys),
             grouped(names.qkvz, size, 2 * keys, values), grouped(names.qkvz, size, 2 * keys + values, values)};
  } else {
    parts = {{.tensor = prefix + names.qkv, .rows = shape.channels()},
             {.tensor = prefix + names.z, .rows = shape.value_rows()}};
  }
  if (form.ba) {
    parts.push_back(grouped(names.ba, 2 * heads, heads, heads));
    parts.push_back(grouped(names.ba, 2 * heads, 0, heads));
  } else {
    parts.push_back({.tensor = prefix + names.a, .rows = shape.heads});
    parts.push_back({.tensor = prefix + names.b, .rows = shape.heads});
  }
  return parts;
}

GatedDeltaSpec delta_layer(const kernels::GatedDeltaShape& shape, const DeltaNames& names, DeltaForm form, int layer,
                           const std::string& prefix, int hidden) {
  const int v = shape.value_rows();
  GatedDeltaSpec g;
  g.name = fmt::format("layers.{}.state", layer);
  g.shape = shape;
  g.input = {delta_inputs(shape, names, form, prefix), hidden};
  g.conv = {{prefix + names.conv, shape.channels()}};
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
  DeltaForm form;
  std::vector<bool> full;  // of each layer: whether it attends
  kernels::RopeParameters rope;
  bool gated = true;  // attention's heads
  bool tied = false;
  std::vector<bool> sparse;  // of each layer: whether it has experts
  ExpertSizes experts;
};

struct Names {
  DecoderNames decoder;
  DeltaNames delta;
  ExpertNames experts;
};

ModelSpec build(Hybrid h, const DecoderTraits& traits, const Names& names) {
  ModelSpec spec = build_decoder(h.sizes, traits, names.decoder, h.tied);
  h.experts.hidden = h.sizes.hidden;
  spec.ropes.push_back(std::move(h.rope));
  for (int i = 0; i < h.sizes.layers; ++i) {
    const auto index = static_cast<size_t>(i);
    const std::string prefix = fmt::format(fmt::runtime(names.decoder.layer), i);
    LayerSpec& layer = spec.layers[index];
    if (h.full[index]) {
      layer.attention().rope = 0;
      if (h.gated) add_gates(layer.attention());
    } else {
      layer.mixer = delta_layer(h.delta, names.delta, h.form, i, prefix, h.sizes.hidden);
    }
    if (h.sparse[index]) layer.mlp = make_experts(h.experts, names.experts, prefix);
  }
  return spec;
}

Result<std::vector<bool>> full_layers(const HuggingFaceConfig& config, int layers) {
  auto full = layers_of_type(config, "layer_types", layers, "full_attention", "linear_attention");
  if (!full || !full->empty()) return full;
  auto interval = config.integer_or("full_attention_interval", 1, kMaxLayers, kDefaultInterval);
  if (!interval) return std::unexpected(interval.error());
  return every_nth(*interval, layers);
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
  kernels::GatedDeltaShape s;
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

// A softmax over all experts.
Result<void> read_experts(const HuggingFaceConfig& config, Hybrid& h) {
  kernels::RouterShape& r = h.experts.router;
  std::optional<Error> error;
  take(config.integer("num_experts", 1, kernels::kMostExperts), r.experts, error);
  take(config.integer("num_experts_per_tok", 1, kernels::kMostChosen), r.chosen, error);
  take(config.boolean_or("norm_topk_prob", true), r.renormalise, error);
  take(config.integer("moe_intermediate_size", 1, kMaxWidth), h.experts.size, error);
  take(config.integer("shared_expert_intermediate_size", 1, kMaxWidth), h.experts.shared_size, error);
  if (error) return std::unexpected(*error);
  return check_experts(h.experts, h.sizes.layers);
}

Result<void> read_experts(const GgufConfig& config, Hybrid& h) {
  std::optional<Error> error;
  read_experts(config, h.experts, error);
  take(config.integer("expert_shared_feed_forward_length", 1, kMaxWidth), h.experts.shared_size, error);
  if (error) return std::unexpected(*error);
  h.sparse.assign(h.sparse.size(), true);
  return check_experts(h.experts, h.sizes.layers);
}

// `stacked`: the experts of a layer in two tensors.
ExpertNames expert_names(bool stacked) {
  ExpertNames names = hugging_face_expert_names("shared_expert");
  names.shared_scores = "mlp.shared_expert_gate.weight";
  if (stacked) names.gate_up = "mlp.experts.gate_up_proj", names.down = "mlp.experts.down_proj";
  return names;
}

ExpertNames gguf_names_of_experts() {
  ExpertNames names = gguf_expert_names();
  names.shared_scores = "ffn_gate_inp_shexp.weight";
  return names;
}

// All but what depends on the architecture.
Result<Hybrid> read(const HuggingFaceConfig& config, bool has_dense = true) {
  Hybrid h;
  auto bias = config.boolean_or("attention_bias", false);
  if (!bias) return std::unexpected(bias.error());
  if (*bias) return fail(ErrorKind::kUnsupported, "attention_bias is not supported", "attention_bias");
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  std::optional<Error> error;
  take(decoder_sizes(config, has_dense), h.sizes, error);
  take(delta_shape(config), h.delta, error);
  take(config.boolean_or("attn_output_gate", true), h.gated, error);
  take(config.boolean_or("tie_word_embeddings", false), h.tied, error);
  if (error) return std::unexpected(*error);
  take(full_layers(config, h.sizes.layers), h.full, error);
  take(hugging_face_rope(config, "", h.sizes.head_dim, kDefaultTheta, kDefaultRotaryPart), h.rope, error);
  if (error) return std::unexpected(*error);
  h.sparse.resize(static_cast<size_t>(h.sizes.layers));
  return h;
}

Result<Hybrid> read(const GgufConfig& config, bool has_dense = true) {
  Hybrid h;
  h.tied = config.file().find("output.weight") == nullptr;
  int interval = 0;
  std::optional<Error> error;
  take(decoder_sizes(config, has_dense), h.sizes, error);
  take(delta_shape(config), h.delta, error);
  take(config.integer_or("full_attention_interval", 1, kMaxLayers, kDefaultInterval), interval, error);
  if (error) return std::unexpected(*error);
  take(gguf_rope(config, h.sizes.head_dim), h.rope, error);
  if (error) return std::unexpected(*error);
  h.full = every_nth(interval, h.sizes.layers);
  h.sparse.resize(static_cast<size_t>(h.sizes.layers));
  return h;
}

DecoderTraits traits(const char* architecture, float norm_offset) {
  return {.architecture = architecture, .qk_norm = true, .norm_offset = norm_offset};
}

ModelSpec build_hugging_face(Hybrid h, const char* architecture, const std::string& root = "model.",
                             bool stacked = false) {
  DecoderTraits t = traits(architecture, 1);
  t.root = root;
  return build(std::move(h), t, {hugging_face_names(t), kHuggingFaceNames, expert_names(stacked)});
}

ModelSpec build_gguf(Hybrid h, const char* architecture) {
  const DecoderTraits t = traits(architecture, 0);
  DecoderNames names = gguf_names(t);
  names.mlp_norm = "post_attention_norm.weight";
  return build(std::move(h), t, {names, kGgufNames, gguf_names_of_experts()});
}

Result<ModelSpec> dense(const HuggingFaceConfig& config, const std::string& root) {
  auto h = read(config);
  if (!h) return std::unexpected(h.error());
  return build_hugging_face(std::move(*h), "qwen3_5", root);
}

// Every layer has experts.
Result<ModelSpec> mixture(const HuggingFaceConfig& config, const std::string& root,
                          const weights::TensorSource* tensors) {
  auto h = read(config, false);
  if (!h) return std::unexpected(h.error());
  if (auto experts = read_experts(config, *h); !experts) return std::unexpected(experts.error());
  if (!h->experts.router.renormalise)  // the reference always does
    return fail(ErrorKind::kUnsupported, "norm_topk_prob false is not supported", "norm_topk_prob");
  h->sparse.assign(h->sparse.size(), true);
  // Released files stack experts, quantised ones and those that transformers writes do not.
  const std::string stack = root + "layers.0.mlp.experts.gate_up_proj";
  const bool stacked = tensors != nullptr && tensors->find(stack) != nullptr;
  return build_hugging_face(std::move(*h), "qwen3_5_moe", root, stacked);
}

}  // namespace

Result<ModelSpec> qwen3_5_from_hugging_face(const HuggingFaceConfig& config) { return dense(config, "model."); }

Result<ModelSpec> qwen3_5_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  const std::string root = find_root(tensors, {"language_model.model.", "model.language_model."});
  return make_text_model(config, {kDenseDefaults, kOfImages},
                         [&](const HuggingFaceConfig& text) { return dense(text, root); });
}

Result<ModelSpec> qwen3_5_moe_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  return mixture(config, find_root(tensors, {"model.language_model.", "model."}), tensors);
}

Result<ModelSpec> qwen3_5_moe_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  const std::string root = find_root(tensors, {"language_model.model.", "model.language_model."});
  return make_text_model(config, {kMoeDefaults, kOfImages},
                         [&](const HuggingFaceConfig& text) { return mixture(text, root, tensors); });
}

Result<ModelSpec> qwen3_next_from_hugging_face(const HuggingFaceConfig& config) {
  auto h = read(config);
  if (!h) return std::unexpected(h.error());
  h->form = {.qkvz = true, .ba = true};
  if (auto experts = read_experts(config, *h); !experts) return std::unexpected(experts.error());
  auto sparse = sparse_layers(config, h->sizes.layers);
  if (!sparse) return std::unexpected(sparse.error());
  h->sparse = std::move(*sparse);
  return build_hugging_face(std::move(*h), "qwen3_next");
}

Result<ModelSpec> qwen3_5_from_gguf(const GgufConfig& config) {
  auto h = read(config);
  if (!h) return std::unexpected(h.error());
  h->delta.tiled = true;
  return build_gguf(std::move(*h), "qwen3_5");
}

Result<ModelSpec> qwen3_5_moe_from_gguf(const GgufConfig& config) {
  auto h = read(config, false);
  if (!h) return std::unexpected(h.error());
  h->delta.tiled = true;
  if (auto experts = read_experts(config, *h); !experts) return std::unexpected(experts.error());
  return build_gguf(std::move(*h), "qwen3_5_moe");
}

Result<ModelSpec> qwen3_next_from_gguf(const GgufConfig& config) {
  auto h = read(config);
  if (!h) return std::unexpected(h.error());
  // The oldest files have q, k, v and z in one tensor.
  h->form = {.qkvz = config.file().find("blk.0." + kGgufNames.qkvz) != nullptr, .ba = true};
  if (auto experts = read_experts(config, *h); !experts) return std::unexpected(experts.error());
  return build_gguf(std::move(*h), "qwen3_next");
}

}  // namespace quire::model
