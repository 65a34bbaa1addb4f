// DeepSeek-V2 and V3, and GLM-4.7-Flash: latent attention, whose rope turns dimensions of its own; a few dense layers,
// then mixtures of experts with one that all rows share. V3 and GLM choose experts by sigmoids with a correction, V2 by
// a softmax. Layers behind the last predict tokens further ahead and are not run. Sources: transformers'
// DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM. GGUF calls all of them `deepseek2`.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr double kDefaultEpsilon = 1e-6;
constexpr float kInnerEpsilon =
    1e-6F;  // of norms of queries and latents, whatever the configuration says of the others

// What the two formats say in different ways.
struct Latent {
  DecoderSizes sizes;
  kernels::LatentShape shape;
  int query_rank = 0;
  kernels::RopeParameters rope;
  double softmax_factor = 1;
  std::vector<bool> dense;  // of each layer
  ExpertSizes experts;
  bool corrected = false;  // whether the router has corrections
  bool tied = false;
};

// Names of the tensors of a layer's attention in one checkpoint format.
struct LatentNames {
  std::string q, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, k_b, v_b, output;
};
const LatentNames kHuggingFaceNames{.q = "self_attn.q_proj.weight",
                                    .q_a = "self_attn.q_a_proj.weight",
                                    .q_norm = "self_attn.q_a_layernorm.weight",
                                    .q_b = "self_attn.q_b_proj.weight",
                                    .kv_a = "self_attn.kv_a_proj_with_mqa.weight",
                                    .kv_norm = "self_attn.kv_a_layernorm.weight",
                                    .kv_b = "self_attn.kv_b_proj.weight",
                                    .k_b = "",
                                    .v_b = "",
                                    .output = "self_attn.o_proj.weight"};
const LatentNames kGgufNames{.q = "attn_q.weight",
                             .q_a = "attn_q_a.weight",
                             .q_norm = "attn_q_a_norm.weight",
                             .q_b = "attn_q_b.weight",
                             .kv_a = "attn_kv_a_mqa.weight",
                             .kv_norm = "attn_kv_a_norm.weight",
                             .kv_b = "attn_kv_b.weight",
                             .k_b = "attn_k_b.weight",
                             .v_b = "attn_v_b.weight",
                             .output = "attn_output.weight"};

// `split`: the expansion is two tensors.
LatentSpec latent_layer(const Latent& m, const LatentNames& names, bool split, int layer, const std::string& prefix) {
  LatentSpec l;
  l.name = fmt::format("layers.{}.latent", layer);
  l.shape = m.shape;
  l.query_rank = m.query_rank;
  l.scale = static_cast<float>(m.softmax_factor / std::sqrt(static_cast<double>(m.shape.query_dim())));
  l.rope = 0;
  l.norm_epsilon = kInnerEpsilon;
  const MatrixPart queries{.tensor = prefix + (m.query_rank > 0 ? names.q_a : names.q), .rows = l.latent_offset()};
  l.input = {{queries, {.tensor = prefix + names.kv_a, .rows = m.shape.row_dim()}}, m.sizes.hidden};
  if (m.query_rank > 0) {
    l.query_norm = {prefix + names.q_norm, m.query_rank, 0};
    l.query = {{{.tensor = prefix + names.q_b, .rows = l.query_rows()}}, m.query_rank};
  }
  l.latent_norm = {prefix + names.kv_norm, m.shape.rank, 0};
  if (split) {
    l.expansion = {.both = "", .keys = prefix + names.k_b, .values = prefix + names.v_b};
  } else {
    l.expansion.both = prefix + names.kv_b;
  }
  l.output = {{{.tensor = prefix + names.output, .rows = m.sizes.hidden}}, l.value_rows(), m.shape.value_dim};
  return l;
}

// Of the router's corrections.
constexpr const char* kHuggingFaceCorrection = "mlp.gate.e_score_correction_bias";
constexpr const char* kGgufCorrection = "exp_probs_b.bias";

struct Names {
  DecoderNames decoder;
  LatentNames latent;
  ExpertNames experts;
  std::string correction;
  bool split = false;
};

Result<ModelSpec> build(Latent m, std::string architecture, Names names) {
  if (auto ok = check_experts(m.experts, m.sizes.layers); !ok) return std::unexpected(ok.error());
  m.sizes.kv_heads = m.sizes.q_heads = m.shape.heads;
  m.sizes.head_dim = m.shape.query_dim();
  m.experts.hidden = m.sizes.hidden;
  if (m.corrected) names.experts.correction = std::move(names.correction);
  ModelSpec spec = build_decoder(m.sizes, {.architecture = std::move(architecture)}, names.decoder, m.tied);
  for (int i = 0; i < m.sizes.layers; ++i) {
    const std::string prefix = fmt::format(fmt::runtime(names.decoder.layer), i);
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.mixer = latent_layer(m, names.latent, names.split, i, prefix);
    if (!m.dense[static_cast<size_t>(i)]) layer.mlp = make_experts(m.experts, names.experts, prefix);
  }
  spec.ropes.push_back(std::move(m.rope));
  return spec;
}

// Which layers are dense: by mlp_layer_types, or the first ones.
Result<std::vector<bool>> dense_layers(const HuggingFaceConfig& config, int layers) {
  auto dense = layers_of_type(config, "mlp_layer_types", layers, "dense", "sparse");
  if (!dense || !dense->empty()) return dense;
  auto first = config.integer("first_k_dense_replace", 0, kMaxLayers);
  if (!first) return std::unexpected(first.error());
  for (int i = 0; i < layers; ++i) dense->push_back(i < *first);
  return dense;
}

void read_sizes(const HuggingFaceConfig& config, Latent& m, std::optional<Error>& error) {
  take(config.integer("num_hidden_layers", 1, kMaxLayers), m.sizes.layers, error);
  take(config.integer("hidden_size", 1, kMaxWidth), m.sizes.hidden, error);
  take(config.integer("intermediate_size", 1, kMaxWidth), m.sizes.intermediate, error);
  take(config.integer("num_attention_heads", 1, kMaxHeads), m.shape.heads, error);
  take(config.integer("vocab_size", 1, kMaxVocabulary), m.sizes.vocab, error);
  take(config.integer("max_position_embeddings", 1, kMaxPositions), m.sizes.max_positions, error);
  take(config.number_or("rms_norm_eps", kDefaultEpsilon), m.sizes.norm_epsilon, error);
  take(config.integer_or("q_lora_rank", 1, kMaxWidth, 0), m.query_rank, error);
  take(config.integer("kv_lora_rank", 1, kMaxWidth), m.shape.rank, error);
  take(config.integer("qk_nope_head_dim", 1, kMaxHeadDim), m.shape.nope_dim, error);
  take(config.integer("qk_rope_head_dim", 2, kMaxHeadDim), m.shape.rope_dim, error);
  take(config.integer("v_head_dim", 1, kMaxHeadDim), m.shape.value_dim, error);
  take(config.boolean_or("tie_word_embeddings", false), m.tied, error);
}

void read_experts(const HuggingFaceConfig& config, Latent& m, std::optional<Error>& error) {
  kernels::RouterShape& r = m.experts.router;
  int shared = 0;
  take(config.integer("n_routed_experts", 1, kernels::kMostExperts), r.experts, error);
  take(config.integer("num_experts_per_tok", 1, kernels::kMostChosen), r.chosen, error);
  take(config.integer("moe_intermediate_size", 1, kMaxWidth), m.experts.size, error);
  take(config.integer_or("n_shared_experts", 0, kernels::kMostExperts, 0), shared, error);
  take(config.integer_or("n_group", 1, kernels::kMostExperts, 1), r.groups, error);
  take(config.integer_or("topk_group", 1, kernels::kMostExperts, 1), r.chosen_groups, error);
  take(config.number_or("routed_scaling_factor", 1), r.scaling, error);
  m.experts.shared_size = shared * m.experts.size;
}

// Sigmoids with corrections; the two best experts speak for a group.
Result<void> read_v3_router(const HuggingFaceConfig& config, Latent& m) {
  std::string method, scoring;
  kernels::RouterShape& r = m.experts.router;
  std::optional<Error> error;
  take(config.string_or("topk_method", "noaux_tc"), method, error);
  take(config.string_or("scoring_func", "sigmoid"), scoring, error);
  take(config.boolean_or("norm_topk_prob", true), r.renormalise, error);
  if (error) return std::unexpected(*error);
  if (method != "noaux_tc") return not_supported("topk_method", method, "noaux_tc");
  if (scoring != "sigmoid") return not_supported("scoring_func", scoring, "sigmoid");
  r.scoring = kernels::Scoring::kSigmoid;
  r.group_best = 2;
  m.corrected = true;
  return {};
}

// A softmax; the best expert speaks for a group, if there are groups.
Result<void> read_v2_router(const HuggingFaceConfig& config, Latent& m) {
  std::string method, scoring;
  kernels::RouterShape& r = m.experts.router;
  bool renormalise = false;
  std::optional<Error> error;
  take(config.string_or("topk_method", "greedy"), method, error);
  take(config.string_or("scoring_func", "softmax"), scoring, error);
  take(config.boolean_or("norm_topk_prob", false), renormalise, error);
  if (error) return std::unexpected(*error);
  if (method != "greedy" && method != "group_limited_greedy")
    return not_supported("topk_method", method, "greedy or group_limited_greedy");
  if (scoring != "softmax") return not_supported("scoring_func", scoring, "softmax");
  // Implementations do not agree on what it means then.
  if (renormalise) return not_supported("norm_topk_prob", "true", "false");
  r.renormalise = false;
  r.scoring = kernels::Scoring::kSoftmax;
  if (method == "greedy") r.groups = r.chosen_groups = 1;
  return {};
}

Result<ModelSpec> from_hugging_face(const HuggingFaceConfig& config, std::string architecture,
                                    Result<void> (*read_router)(const HuggingFaceConfig&, Latent&)) {
  auto bias = config.boolean_or("attention_bias", false);
  if (!bias) return std::unexpected(bias.error());
  if (*bias) return not_supported("attention_bias", "true", "false");
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  Latent m;
  int every = 1;
  bool interleaved = true;
  std::optional<Error> error;
  read_sizes(config, m, error);
  read_experts(config, m, error);
  take(config.integer_or("moe_layer_freq", 1, kMaxLayers, 1), every, error);
  take(config.boolean_or("rope_interleave", true), interleaved, error);
  if (error) return std::unexpected(*error);
  if (auto ok = check_norm_epsilon("rms_norm_eps", m.sizes.norm_epsilon); !ok) return std::unexpected(ok.error());
  if (auto ok = kernels::check_latent_shape(m.shape); !ok) return std::unexpected(ok.error());
  if (every != 1) return not_supported("moe_layer_freq", std::to_string(every), "1");
  if (auto read = read_router(config, m); !read) return std::unexpected(read.error());
  take(dense_layers(config, m.sizes.layers), m.dense, error);
  take(hugging_face_rope(config, "", m.shape.rope_dim, kDefaultTheta), m.rope, error);
  take(yarn_softmax_factor(config), m.softmax_factor, error);
  if (error) return std::unexpected(*error);
  m.rope.interleaved = interleaved;
  return build(std::move(m), std::move(architecture),
               {hugging_face_names(DecoderTraits{}), kHuggingFaceNames, hugging_face_expert_names("shared_experts"),
                kHuggingFaceCorrection, false});
}

void read_sizes(const GgufConfig& config, Latent& m, std::optional<Error>& error) {
  int head = 0;
  take(gguf_layers(config), m.sizes.layers, error);
  take(config.integer("embedding_length", 1, kMaxWidth), m.sizes.hidden, error);
  take(config.integer("feed_forward_length", 1, kMaxWidth), m.sizes.intermediate, error);
  take(config.integer("attention.head_count", 1, kMaxHeads), m.shape.heads, error);
  take(config.vocab_size(), m.sizes.vocab, error);
  take(config.integer("context_length", 1, kMaxPositions), m.sizes.max_positions, error);
  take(config.number("attention.layer_norm_rms_epsilon"), m.sizes.norm_epsilon, error);
  take(config.integer_or("attention.q_lora_rank", 1, kMaxWidth, 0), m.query_rank, error);
  take(config.integer("attention.kv_lora_rank", 1, kMaxWidth), m.shape.rank, error);
  // Older files have the sizes of heads where newer ones have those of latent rows.
  const bool newer = config.has("attention.key_length_mla");
  take(config.integer(newer ? "attention.key_length_mla" : "attention.key_length", 1, kMaxHeadDim), head, error);
  take(config.integer(newer ? "attention.value_length_mla" : "attention.value_length", 1, kMaxHeadDim),
       m.shape.value_dim, error);
  take(config.integer("rope.dimension_count", 2, kMaxHeadDim), m.shape.rope_dim, error);
  m.shape.nope_dim = head - m.shape.rope_dim;
  m.tied = config.file().find("output.weight") == nullptr;
}

Result<void> read_experts(const GgufConfig& config, Latent& m) {
  kernels::RouterShape& r = m.experts.router;
  int shared = 0, gating = 0, dense = 0;
  std::optional<Error> error;
  read_experts(config, m.experts, error);
  take(config.integer_or("expert_shared_count", 0, kernels::kMostExperts, 0), shared, error);
  take(config.integer_or("expert_group_count", 1, kernels::kMostExperts, 1), r.groups, error);
  take(config.integer_or("expert_group_used_count", 1, kernels::kMostExperts, 1), r.chosen_groups, error);
  take(config.number_or("expert_weights_scale", 1), r.scaling, error);
  if (r.scaling == 0) r.scaling = 1;  // as llama.cpp reads it
  take(config.boolean_or("expert_weights_norm", false), r.renormalise, error);
  take(config.integer_or("expert_gating_func", 0, 16, 0), gating, error);
  take(config.integer_or("leading_dense_block_count", 0, kMaxLayers, 0), dense, error);
  if (error) return std::unexpected(*error);
  if (gating > 2)
    return fail(ErrorKind::kUnsupported,
                fmt::format("expert_gating_func {} is not supported; it must be 1 (softmax) or 2 (sigmoid)", gating),
                "expert_gating_func");
  m.experts.shared_size = shared * m.experts.size;
  for (int i = 0; i < m.sizes.layers; ++i) m.dense.push_back(i < dense);
  m.corrected = config.file().find(fmt::format("blk.{}.{}", dense, kGgufCorrection)) != nullptr;
  // Files without the key are of V2, or of models with corrections.
  const bool sigmoid = gating == 2 || (gating == 0 && m.corrected);
  r.scoring = sigmoid ? kernels::Scoring::kSigmoid : kernels::Scoring::kSoftmax;
  r.group_best = sigmoid ? 2 : 1;
  return {};
}

}  // namespace

Result<ModelSpec> deepseek2_from_hugging_face(const HuggingFaceConfig& config) {
  return from_hugging_face(config, "deepseek_v2", read_v2_router);
}

Result<ModelSpec> deepseek3_from_hugging_face(const HuggingFaceConfig& config) {
  return from_hugging_face(config, "deepseek_v3", read_v3_router);
}

Result<ModelSpec> glm4_moe_lite_from_hugging_face(const HuggingFaceConfig& config) {
  return from_hugging_face(config, "glm4_moe_lite", read_v3_router);
}

Result<ModelSpec> deepseek2_from_gguf(const GgufConfig& config) {
  Latent m;
  std::optional<Error> error;
  read_sizes(config, m, error);
  if (error) return std::unexpected(*error);
  if (auto ok = check_norm_epsilon("attention.layer_norm_rms_epsilon", m.sizes.norm_epsilon); !ok)
    return std::unexpected(ok.error());
  if (auto ok = kernels::check_latent_shape(m.shape); !ok) return std::unexpected(ok.error());
  if (auto read = read_experts(config, m); !read) return std::unexpected(read.error());
  take(gguf_rope(config, m.shape.rope_dim), m.rope, error);
  take(yarn_softmax_factor(config), m.softmax_factor, error);
  if (error) return std::unexpected(*error);
  m.rope.interleaved = true;
  const bool split = config.file().find("blk.0." + kGgufNames.kv_b) == nullptr;
  return build(std::move(m), "deepseek2",
               {gguf_names(DecoderTraits{}), kGgufNames, gguf_expert_names(), kGgufCorrection, split});
}

}  // namespace quire::model
