// GLM-5.3-Flash: three layers of Kimi delta attention (KDA) to one of latent attention without rope, which reads the
// tokens that an indexer over pools chooses; a few dense layers, then mixtures of experts with one that all rows share;
// SwiGLU with bounds; four residual streams. KDA is the gated delta rule with a decay for each channel of a key, gates
// through narrow layers, and three convolutions. It is published as text and vision, and run as text. Source:
// transformers' Glm5NextForConditionalGeneration, which keeps pooled keys as they are; published kernels turn them by a
// Hadamard matrix, which changes no product, and round them to fp8. GGUF has no name for it.
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
#include "model/architectures/latent.h"
#include "model/architectures/multimodal.h"

namespace quire::model {
namespace {

constexpr int kMostPool = 64;
constexpr int kInterval = 4;  // every fourth layer attends unless said otherwise

// What text_config leaves out.
constexpr std::string_view kDefaults = R"({
    "vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "num_hidden_layers": 45, "num_attention_heads": 64, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
    "n_routed_experts": 288, "n_shared_experts": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "index_kpool": 16,
    "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
    "swiglu_limit": 10.0, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20})";
constexpr std::array<std::string_view, 7> kOfImages = {
    "vision_config",      "image_token_id",       "video_token_id",    "image_start_token_id",
    "image_end_token_id", "video_start_token_id", "video_end_token_id"};

struct Glm5 {
  LatentSizes latent;
  kernels::GatedDeltaShape delta;
  kernels::PooledIndexShape index;
  kernels::StreamShape streams;
  float swiglu_limit = 0;
  std::vector<bool> indexed;  // of each layer: whether it attends to what an indexer chooses
};

GatedDeltaSpec make_delta(const kernels::GatedDeltaShape& shape, int layer, const std::string& prefix, int hidden) {
  const auto part = [&](const char* name, int rows) {
    return MatrixPart{.tensor = prefix + "self_attn." + name + ".weight", .rows = rows};
  };
  const int keys = shape.key_rows(), values = shape.value_rows(), rank = shape.key_dim;
  GatedDeltaSpec g;
  g.name = fmt::format("layers.{}.state", layer);
  g.shape = shape;
  g.gate_rank = rank;
  g.input = {{part("q_proj", keys), part("k_proj", keys), part("v_proj", values), part("g_a_proj", rank),
              part("f_a_proj", rank), part("b_proj", shape.heads)},
             hidden};
  g.z = {{part("g_b_proj", values)}, rank};
  g.a = {{part("f_b_proj", shape.decays())}, rank};
  for (const auto& [name, channels] : {std::pair{"q_conv1d", keys}, {"k_conv1d", keys}, {"v_conv1d", values}})
    g.conv.push_back({part(name, 0).tensor, channels});
  g.decay = prefix + "self_attn.A_log";
  g.dt_bias = prefix + "self_attn.dt_bias";
  g.norm = {part("o_norm", 0).tensor, shape.value_dim, 0};
  g.sigmoid_gate = true;
  g.output = {{part("o_proj", hidden)}, values, values / shape.key_heads};
  return g;
}

StreamsSpec make_streams(const kernels::StreamShape& shape, int hidden, const std::string& name) {
  StreamsSpec s;
  s.scores = {{{.tensor = name + "_fn", .rows = shape.scores(), .in_fp32 = true}}, shape.count * hidden};
  s.scale = name + "_scale";
  s.bias = name + "_base";
  return s;
}

// g = min(gate, limit), u = up between both limits: silu(g) * u.
void bound(MlpSpec& mlp, float limit) {
  mlp.activation = Activation::kClampedSwiglu;
  mlp.alpha = 1;
  mlp.limit = limit;
}

ModelSpec build(Glm5 m, const std::string& root) {
  LatentSizes& l = m.latent;
  const int hidden = l.experts.hidden = l.sizes.hidden;
  l.sizes.kv_heads = l.sizes.q_heads = l.shape.heads;
  l.sizes.head_dim = l.shape.query_dim();
  const DecoderNames names = hugging_face_names({.architecture = "glm5_next", .root = root});
  ExpertNames experts = hugging_face_expert_names("shared_experts");
  experts.correction = kHuggingFaceCorrection;
  ModelSpec spec = build_decoder(l.sizes, {.architecture = "glm5_next"}, names, l.tied);
  spec.streams = m.streams;
  for (int i = 0; i < l.sizes.layers; ++i) {
    const auto index = static_cast<size_t>(i);
    const std::string prefix = fmt::format(fmt::runtime(names.layer), i);
    LayerSpec& layer = spec.layers[index];
    layer.attention_streams = make_streams(m.streams, hidden, prefix + "hc_attn");
    layer.mlp_streams = make_streams(m.streams, hidden, prefix + "hc_ffn");
    if (m.indexed[index]) {
      LatentSpec latent = make_latent(l, hugging_face_latent_names(), i, prefix);
      add_indexer(latent, m.index, -1, hugging_face_index_names(), prefix);
      layer.mixer = std::move(latent);
    } else {
      layer.mixer = make_delta(m.delta, i, prefix, hidden);
    }
    if (l.dense[index]) {
      bound(layer.dense(), m.swiglu_limit);
    } else {
      MoeSpec moe = make_experts(l.experts, experts, prefix);
      for (MlpSpec& expert : moe.experts) bound(expert, m.swiglu_limit);
      if (moe.shared) bound(*moe.shared, m.swiglu_limit);
      layer.mlp = std::move(moe);
    }
  }
  return spec;
}

// A section linear_attn_config says the same with other names, and goes before.
Result<kernels::GatedDeltaShape> delta_shape(const HuggingFaceConfig& config) {
  kernels::GatedDeltaShape s;
  std::optional<Error> error;
  if (config.has("linear_attn_config")) {
    constexpr std::array kKnown = {"num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound", "safe_gate"};
    auto keys = config.keys("linear_attn_config");
    if (!keys) return std::unexpected(keys.error());
    for (const std::string& name : *keys)
      if (std::ranges::find(kKnown, name) == kKnown.end())
        return not_supported("linear_attn_config", name, fmt::format("made of {}", fmt::join(kKnown, ", ")));
  }
  const auto key = [&](const char* in_section, const char* flat) {
    const std::string nested = std::string("linear_attn_config/") + in_section;
    static_cast<void>(config.has(flat));  // is understood where both are there
    return config.has(nested) ? nested : std::string(flat);
  };
  const std::string floor = key("gate_lower_bound", "linear_lower_bound");
  take(config.integer(key("num_heads", "linear_num_heads"), 1, kMaxHeads), s.heads, error);
  take(config.integer(key("head_dim", "linear_head_dim"), 1, kMaxHeadDim), s.key_dim, error);
  take(config.integer(key("short_conv_kernel_size", "linear_conv_kernel_dim"), 1, kMaxWidth), s.conv_width, error);
  take(config.number(floor), s.decay_floor, error);
  if (config.is_null(floor)) return not_supported(floor, "null", "a number below 0");
  if (error) return std::unexpected(*error);
  s.key_heads = s.heads;
  s.value_dim = s.key_dim;
  if (!s.decays_by_channel()) return not_supported(floor, fmt::format("{}", s.decay_floor), "a number below 0");
  if (auto ok = kernels::check_gated_delta_shape(s); !ok) return std::unexpected(ok.error());
  return s;
}

// Which layers attend, all of them by indexers of their own.
Result<std::vector<bool>> indexed_layers(const HuggingFaceConfig& config, int layers) {
  std::vector<bool> indexed = every_nth(kInterval, layers);
  if (config.has("layer_types")) {
    auto types = config.strings("layer_types");
    if (!types) return std::unexpected(types.error());
    // Older configurations call the same layers so.
    const bool older = !types->empty() && std::ranges::find(*types, "full_attention") != types->end();
    auto listed = layers_of_type(config, "layer_types", layers, older ? "full_attention" : "indexed_attention",
                                 "linear_attention");
    if (!listed) return listed;
    indexed = std::move(*listed);
  }
  auto own = layers_with_indexers(config, layers);
  if (!own) return std::unexpected(own.error());
  for (size_t i = 0; i < indexed.size(); ++i)
    if (indexed[i] && !(*own)[i])
      return not_supported("indexer_types", "shared", fmt::format("full for layer {}, which attends", i));
  return indexed;
}

// What must be so, since nothing else is computed.
Result<void> check_rest(const HuggingFaceConfig& config, const LatentSizes& m) {
  bool bias = false, tail = true;
  int kv_heads = 0, turned = 0;
  std::string router;
  std::optional<Error> error;
  take(config.boolean_or("attention_bias", false), bias, error);
  take(config.boolean_or("index_kpool_always_select_tail", true), tail, error);
  take(config.integer_or("num_key_value_heads", 1, kMaxHeads, m.shape.heads), kv_heads, error);
  take(config.integer_or("qk_rope_head_dim", 0, kMaxHeadDim, 0), turned, error);
  take(config.string_or("moe_router_dtype", "float32"), router, error);
  if (error) return std::unexpected(*error);
  if (bias) return not_supported("attention_bias", "true", "false");
  if (!tail) return not_supported("index_kpool_always_select_tail", "false", "true");
  if (kv_heads != m.shape.heads)
    return not_supported("num_key_value_heads", std::to_string(kv_heads), "the same as num_attention_heads");
  if (turned != 0) return not_supported("qk_rope_head_dim", std::to_string(turned), "0");
  if (router != "float32") return not_supported("moe_router_dtype", router, "float32");
  if (m.query_rank == 0) return not_supported("q_lora_rank", "null", "a number, where layers have indexers");
  return require_activation(config, "hidden_act", "silu");
}

Result<ModelSpec> text_model(const HuggingFaceConfig& config, const std::string& root) {
  Glm5 m;
  LatentSizes& l = m.latent;
  std::optional<Error> error;
  read_latent_sizes(config, l, error);
  read_latent_experts(config, l, error);
  read_index_shape(config, m.index, error);
  take(config.integer("index_kpool", 1, kMostPool), m.index.pool, error);
  take(config.integer("hc_mult", 1, kernels::kMostStreams), m.streams.count, error);
  take(config.integer("hc_sinkhorn_iters", 1, kMaxLayers), m.streams.iterations, error);
  take(config.number("hc_eps"), m.streams.epsilon, error);
  take(config.number("swiglu_limit"), m.swiglu_limit, error);
  if (error) return std::unexpected(*error);
  l.norm_epsilon = l.sizes.norm_epsilon;
  if (auto ok = check_norm_epsilon("rms_norm_eps", l.norm_epsilon); !ok) return std::unexpected(ok.error());
  if (!(m.swiglu_limit > 0))
    return fail(ErrorKind::kCorruptFile, "swiglu_limit must be greater than 0", "swiglu_limit");
  if (auto ok = check_rest(config, l); !ok) return std::unexpected(ok.error());
  for (auto ok :
       {read_v3_router(config, l), check_experts(l.experts, l.sizes.layers), kernels::check_latent_shape(l.shape),
        kernels::check_pooled_index_shape(m.index), kernels::check_stream_shape(m.streams)})
    if (!ok) return std::unexpected(ok.error());
  take(dense_layers(config, l.sizes.layers), l.dense, error);
  take(delta_shape(config), m.delta, error);
  take(indexed_layers(config, l.sizes.layers), m.indexed, error);
  if (error) return std::unexpected(*error);
  return build(std::move(m), root);
}

}  // namespace

Result<ModelSpec> glm5_next_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  const std::string root = find_root(tensors, {"language_model.model.", "model.language_model."});
  return make_text_model(config, {kDefaults, kOfImages},
                         [&](const HuggingFaceConfig& text) { return text_model(text, root); });
}

}  // namespace quire::model
