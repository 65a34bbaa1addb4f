#include "model/architectures/latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace quire::model {
namespace {

constexpr double kDefaultEpsilon = 1e-6;
constexpr float kKeyNormEpsilon = 1e-6F;
constexpr int kMostIndexHeads = 1 << 10;
constexpr int kMostChosenTokens = 1 << 16;

}  // namespace

LatentNames hugging_face_latent_names() {
  return {.q = "self_attn.q_proj.weight",
          .q_a = "self_attn.q_a_proj.weight",
          .q_norm = "self_attn.q_a_layernorm.weight",
          .q_b = "self_attn.q_b_proj.weight",
          .kv_a = "self_attn.kv_a_proj_with_mqa.weight",
          .kv_norm = "self_attn.kv_a_layernorm.weight",
          .output = "self_attn.o_proj.weight",
          .kv_b = "self_attn.kv_b_proj.weight",
          .k_b = {},
          .v_b = {}};
}

IndexNames hugging_face_index_names() {
  return {.queries = "self_attn.indexer.wq_b.weight",
          .keys = "self_attn.indexer.wk.weight",
          .weights = "self_attn.indexer.weights_proj.weight",
          .norm_weight = "self_attn.indexer.k_norm.weight",
          .norm_bias = "self_attn.indexer.k_norm.bias",
          .gates = "self_attn.indexer.index_kpool_compress_gate",
          .position_bias = "self_attn.indexer.index_kpool_compress_ape"};
}

void read_latent_sizes(const HuggingFaceConfig& config, LatentSizes& m, std::optional<Error>& error) {
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
  take(config.integer("v_head_dim", 1, kMaxHeadDim), m.shape.value_dim, error);
  take(config.boolean_or("tie_word_embeddings", false), m.tied, error);
}

void read_latent_experts(const HuggingFaceConfig& config, LatentSizes& m, std::optional<Error>& error) {
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

Result<void> read_v3_router(const HuggingFaceConfig& config, LatentSizes& m) {
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

Result<std::vector<bool>> dense_layers(const HuggingFaceConfig& config, int layers) {
  auto dense = layers_of_type(config, "mlp_layer_types", layers, "dense", "sparse");
  if (!dense || !dense->empty()) return dense;
  auto first = config.integer("first_k_dense_replace", 0, kMaxLayers);
  if (!first) return std::unexpected(first.error());
  for (int i = 0; i < layers; ++i) dense->push_back(i < *first);
  return dense;
}

LatentSpec make_latent(const LatentSizes& m, const LatentNames& names, int layer, const std::string& prefix) {
  LatentSpec l;
  l.name = fmt::format("layers.{}.latent", layer);
  l.shape = m.shape;
  l.query_rank = m.query_rank;
  l.scale = static_cast<float>(m.softmax_factor / std::sqrt(static_cast<double>(m.shape.query_dim())));
  l.rope = m.shape.rope_dim > 0 ? 0 : -1;
  l.norm_epsilon = m.norm_epsilon;
  const MatrixPart queries{.tensor = prefix + (m.query_rank > 0 ? names.q_a : names.q), .rows = l.latent_offset()};
  l.input = {{queries, {.tensor = prefix + names.kv_a, .rows = m.shape.row_dim()}}, m.sizes.hidden};
  if (m.query_rank > 0) {
    l.query_norm = {prefix + names.q_norm, m.query_rank, 0};
    l.query = {{{.tensor = prefix + names.q_b, .rows = l.query_rows()}}, m.query_rank};
  }
  l.latent_norm = {prefix + names.kv_norm, m.shape.rank, 0};
  if (names.kv_b.empty()) {
    l.expansion = {.both = "", .keys = prefix + names.k_b, .values = prefix + names.v_b};
  } else {
    l.expansion.both = prefix + names.kv_b;
  }
  l.output = {{{.tensor = prefix + names.output, .rows = m.sizes.hidden}}, l.value_rows(), m.shape.value_dim};
  return l;
}

void read_index_shape(const HuggingFaceConfig& config, kernels::PooledIndexShape& shape, std::optional<Error>& error) {
  take(config.integer("index_n_heads", 1, kMostIndexHeads), shape.heads, error);
  take(config.integer("index_head_dim", 1, kMaxHeadDim), shape.dim, error);
  take(config.integer("index_topk", 1, kMostChosenTokens), shape.top_k, error);
}

Result<std::vector<bool>> layers_with_indexers(const HuggingFaceConfig& config, int layers) {
  auto own = layers_of_type(config, "indexer_types", layers, "full", "shared");
  int every = 1, offset = 0;
  std::string pattern;
  std::optional<Error> error;
  take(config.string_or("index_topk_pattern", ""), pattern, error);
  take(config.integer_or("index_topk_freq", 1, kMaxLayers, 1), every, error);
  take(config.integer_or("index_skip_topk_offset", 0, kMaxLayers, 2), offset, error);
  if (error) return std::unexpected(*error);
  if (!own || !own->empty()) return own;
  if (pattern.empty()) {
    for (int i = 0; i < layers; ++i) own->push_back(std::max(i - offset + 1, 0) % every == 0);
    return own;
  }
  if (std::ssize(pattern) != layers || pattern.find_first_not_of("FS") != std::string::npos)
    return not_supported("index_topk_pattern", pattern, fmt::format("{} letters F and S, one a layer", layers));
  for (const char letter : pattern) own->push_back(letter == 'F');
  return own;
}

void add_indexer(LatentSpec& l, const kernels::PooledIndexShape& shape, int rope, const IndexNames& names,
                 const std::string& prefix) {
  PooledIndexSpec& i = l.indexer.emplace();
  i.keys_name = l.name + ".index_keys";
  i.shape = shape;
  i.rope = rope;
  i.norm_weight = prefix + names.norm_weight;
  i.norm_bias = prefix + names.norm_bias;
  i.norm_epsilon = kKeyNormEpsilon;
  l.input.parts.push_back({.tensor = prefix + names.keys, .rows = shape.dim, .in_fp32 = true});
  if (shape.keeps_ring()) {
    i.ring_name = l.name + ".open_pool";
    i.position_bias = prefix + names.position_bias;
    l.input.parts.push_back({.tensor = prefix + names.gates, .rows = shape.dim, .in_fp32 = true});
  }
  l.input.parts.push_back({.tensor = prefix + names.weights, .rows = shape.heads, .in_fp32 = true});
  l.query.parts.push_back({.tensor = prefix + names.queries, .rows = i.query_rows(), .in_fp32 = true});
}

}  // namespace quire::model
