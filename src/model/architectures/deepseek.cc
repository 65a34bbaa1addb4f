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
#include "model/architectures/latent.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;

const LatentNames kGgufNames{.q = "attn_q.weight",
                             .q_a = "attn_q_a.weight",
                             .q_norm = "attn_q_a_norm.weight",
                             .q_b = "attn_q_b.weight",
                             .kv_a = "attn_kv_a_mqa.weight",
                             .kv_norm = "attn_kv_a_norm.weight",
                             .output = "attn_output.weight",
                             .kv_b = "attn_kv_b.weight",
                             .k_b = "attn_k_b.weight",
                             .v_b = "attn_v_b.weight"};
constexpr const char* kGgufCorrection = "exp_probs_b.bias";  // of the router

struct Names {
  DecoderNames decoder;
  LatentNames latent;
  ExpertNames experts;
  std::string correction;
};

Result<ModelSpec> build(LatentSizes m, std::string architecture, Names names) {
  if (auto ok = check_experts(m.experts, m.sizes.layers); !ok) return std::unexpected(ok.error());
  m.sizes.kv_heads = m.sizes.q_heads = m.shape.heads;
  m.sizes.head_dim = m.shape.query_dim();
  m.experts.hidden = m.sizes.hidden;
  if (m.corrected) names.experts.correction = std::move(names.correction);
  ModelSpec spec = build_decoder(m.sizes, {.architecture = std::move(architecture)}, names.decoder, m.tied);
  for (int i = 0; i < m.sizes.layers; ++i) {
    const std::string prefix = fmt::format(fmt::runtime(names.decoder.layer), i);
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.mixer = make_latent(m, names.latent, i, prefix);
    if (!m.dense[static_cast<size_t>(i)]) layer.mlp = make_experts(m.experts, names.experts, prefix);
  }
  spec.ropes.push_back(std::move(m.rope));
  return spec;
}

// A softmax; the best expert speaks for a group, if there are groups.
Result<void> read_v2_router(const HuggingFaceConfig& config, LatentSizes& m) {
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
                                    Result<void> (*read_router)(const HuggingFaceConfig&, LatentSizes&)) {
  auto bias = config.boolean_or("attention_bias", false);
  if (!bias) return std::unexpected(bias.error());
  if (*bias) return not_supported("attention_bias", "true", "false");
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  LatentSizes m;
  int every = 1;
  bool interleaved = true;
  std::optional<Error> error;
  read_latent_sizes(config, m, error);
  read_latent_experts(config, m, error);
  take(config.integer("qk_rope_head_dim", 2, kMaxHeadDim), m.shape.rope_dim, error);
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
               {hugging_face_names(DecoderTraits{}), hugging_face_latent_names(),
                hugging_face_expert_names("shared_experts"), kHuggingFaceCorrection});
}

void read_sizes(const GgufConfig& config, LatentSizes& m, std::optional<Error>& error) {
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

Result<void> read_experts(const GgufConfig& config, LatentSizes& m) {
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
  LatentSizes m;
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
  LatentNames names = kGgufNames;
  if (config.file().find("blk.0." + names.kv_b) == nullptr) names.kv_b.clear();
  return build(std::move(m), "deepseek2",
               {gguf_names(DecoderTraits{}), std::move(names), gguf_expert_names(), kGgufCorrection});
}

}  // namespace quire::model
