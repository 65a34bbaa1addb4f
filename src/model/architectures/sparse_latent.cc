// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 and GLM-4.7-Flash whose latent layers read only the tokens that an indexer
// chooses. Some layers of GLM-5.2 have none and read what the last one before them chose. The dimensions of an index
// head that turn come first, in DeepSeek as halves, in GLM as pairs. Sources: transformers' DeepseekV32ForCausalLM and
// GlmMoeDsaForCausalLM, which keep keys as they are; published kernels turn them by a Hadamard matrix, which changes no
// product, and round them to fp8. GGUF calls them `deepseek32` and `glm-dsa`.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/latent.h"

namespace quire::model {
namespace {

constexpr int kMostHeads = 1 << 10;
constexpr int kMostChosen = 1 << 16;

struct Indexers {
  kernels::PooledIndexShape shape;
  bool interleaved = false;
  std::vector<bool> own = {};  // of each layer: whether it has an indexer
};

const IndexNames kGgufNames{.queries = "indexer.attn_q_b.weight",
                            .keys = "indexer.attn_k.weight",
                            .weights = "indexer.proj.weight",
                            .norm_weight = "indexer.k_norm.weight",
                            .norm_bias = "indexer.k_norm.bias"};

// `layer`: what the names of a layer's tensors begin with, {} for its number.
Result<ModelSpec> with_indexers(ModelSpec spec, std::string architecture, const Indexers& indexers,
                                const IndexNames& names, const std::string& layer) {
  spec.architecture = std::move(architecture);
  int rope = 0;
  if (spec.ropes.front().interleaved != indexers.interleaved) {
    rope = 1;
    spec.ropes.push_back(spec.ropes.front());
    spec.ropes.back().interleaved = indexers.interleaved;
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    auto& latent = std::get<LatentSpec>(spec.layers[i].mixer);
    if (indexers.own[i])
      add_indexer(latent, indexers.shape, rope, names, fmt::format(fmt::runtime(layer), i));
    else
      latent.reads_last_choice = true;
  }
  return spec;
}

// What configurations of these models say beside those of the models that they come from.
Result<void> check_rest(const HuggingFaceConfig& config) {
  std::string router;
  std::optional<Error> error;
  take(config.string_or("moe_router_dtype", "float32"), router, error);
  if (error) return std::unexpected(*error);
  if (router != "float32") return not_supported("moe_router_dtype", router, "float32");
  if (!config.has("q_lora_rank")) return not_supported("q_lora_rank", "null", "a number, where layers have indexers");
  if (!config.has("layer_types")) return {};
  auto types = config.strings("layer_types");
  if (!types) return std::unexpected(types.error());
  for (const std::string& type : *types)
    if (type != "indexed_attention") return not_supported("layer_types", type, "indexed_attention for all layers");
  return {};
}

Result<ModelSpec> from_hugging_face(const HuggingFaceConfig& config, Result<ModelSpec> spec, std::string architecture,
                                    bool interleaved) {
  if (!spec) return spec;
  if (auto rest = check_rest(config); !rest) return std::unexpected(rest.error());
  Indexers indexers{.shape = {.pool = 1}};
  std::optional<Error> error;
  read_index_shape(config, indexers.shape, error);
  take(config.boolean_or("indexer_rope_interleave", interleaved), indexers.interleaved, error);
  if (error) return std::unexpected(*error);
  auto own = layers_with_indexers(config, static_cast<int>(spec->layers.size()));
  if (!own) return std::unexpected(own.error());
  indexers.own = std::move(*own);
  return with_indexers(std::move(*spec), std::move(architecture), indexers, hugging_face_index_names(),
                       hugging_face_names(DecoderTraits{}).layer);
}

// Where the list is missing, layers that have the tensors of an indexer have one.
Result<std::vector<bool>> own_indexers(const GgufConfig& config, const std::string& layer, int layers) {
  std::vector<bool> own;
  if (!config.has("attention.indexer.types")) {
    for (int i = 0; i < layers; ++i)
      own.push_back(config.file().find(fmt::format(fmt::runtime(layer), i) + kGgufNames.keys) != nullptr);
    return own;
  }
  auto list = config.integers("attention.indexer.types", 0, 1);
  if (!list) return std::unexpected(list.error());
  if (std::ssize(*list) < layers)
    return fail(ErrorKind::kCorruptFile,
                fmt::format("attention.indexer.types must have one entry a layer, {}, not {}", layers, list->size()),
                "attention.indexer.types");
  own.assign(list->begin(), list->begin() + layers);
  return own;
}

Result<ModelSpec> from_gguf(const GgufConfig& config, std::string architecture, bool interleaved) {
  auto spec = deepseek2_from_gguf(config);
  if (!spec) return spec;
  Indexers indexers{.shape = {.pool = 1}, .interleaved = interleaved};
  std::optional<Error> error;
  take(config.integer("attention.indexer.head_count", 1, kMostHeads), indexers.shape.heads, error);
  take(config.integer("attention.indexer.key_length", 1, kMaxHeadDim), indexers.shape.dim, error);
  take(config.integer("attention.indexer.top_k", 1, kMostChosen), indexers.shape.top_k, error);
  if (error) return std::unexpected(*error);
  const std::string layer = gguf_names(DecoderTraits{}).layer;
  auto own = own_indexers(config, layer, static_cast<int>(spec->layers.size()));
  if (!own) return std::unexpected(own.error());
  indexers.own = std::move(*own);
  return with_indexers(std::move(*spec), std::move(architecture), indexers, kGgufNames, layer);
}

}  // namespace

Result<ModelSpec> deepseek32_from_hugging_face(const HuggingFaceConfig& config) {
  return from_hugging_face(config, deepseek3_from_hugging_face(config), "deepseek_v32", false);
}

Result<ModelSpec> glm_moe_dsa_from_hugging_face(const HuggingFaceConfig& config) {
  return from_hugging_face(config, glm4_moe_lite_from_hugging_face(config), "glm_moe_dsa", true);
}

Result<ModelSpec> deepseek32_from_gguf(const GgufConfig& config) { return from_gguf(config, "deepseek32", false); }

Result<ModelSpec> glm_dsa_from_gguf(const GgufConfig& config) { return from_gguf(config, "glm-dsa", true); }

}  // namespace quire::model
