// What models with latent attention have in common (DeepSeek-V2 to V3.2, GLM-4.7-Flash to GLM-5.3): the sizes that
// their configurations state, their routers, the tensors of a layer, and the indexers of those that have some.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"
#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

struct LatentSizes {
  DecoderSizes sizes;
  kernels::LatentShape shape;
  int query_rank = 0;
  float norm_epsilon = 1e-6F;  // of norms of queries and latents, in most whatever the configuration says of others
  kernels::RopeParameters rope;
  double softmax_factor = 1;
  std::vector<bool> dense;  // of each layer
  ExpertSizes experts;
  bool corrected = false;  // whether the router has corrections
  bool tied = false;
};

// Names of the tensors of a layer's attention in one checkpoint format.
struct LatentNames {
  std::string q, q_a, q_norm, q_b, kv_a, kv_norm, output;
  std::string kv_b, k_b, v_b;  // kv_b empty: the expansion is the other two
};
LatentNames hugging_face_latent_names();
inline constexpr const char* kHuggingFaceCorrection = "mlp.gate.e_score_correction_bias";  // of the router

// All but qk_rope_head_dim. The first error stays in `error`, here and below.
void read_latent_sizes(const HuggingFaceConfig& config, LatentSizes& m, std::optional<Error>& error);
void read_latent_experts(const HuggingFaceConfig& config, LatentSizes& m, std::optional<Error>& error);
// Sigmoids with corrections; the two best experts speak for a group.
Result<void> read_v3_router(const HuggingFaceConfig& config, LatentSizes& m);
// Which layers are dense: by mlp_layer_types, or the first first_k_dense_replace.
Result<std::vector<bool>> dense_layers(const HuggingFaceConfig& config, int layers);

// The layer has the model's first rope, if it has dimensions for it.
LatentSpec make_latent(const LatentSizes& m, const LatentNames& names, int layer, const std::string& prefix);

struct IndexNames {
  std::string queries, keys, weights, norm_weight, norm_bias;
  std::string gates = {}, position_bias = {};  // of pools alone
};
IndexNames hugging_face_index_names();

// Reads the indexers' heads, dimension and tokens.
void read_index_shape(const HuggingFaceConfig& config, kernels::PooledIndexShape& shape, std::optional<Error>& error);
// Which layers have an indexer: by a list, by a letter a layer, or every so many after the first ones.
Result<std::vector<bool>> layers_with_indexers(const HuggingFaceConfig& config, int layers);

// `rope`: of keys and queries; -1: none.
void add_indexer(LatentSpec& l, const kernels::PooledIndexShape& shape, int rope, const IndexNames& names,
                 const std::string& prefix);

}  // namespace quire::model
