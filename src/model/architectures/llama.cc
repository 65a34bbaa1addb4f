// Llama: pre-norm, no q/k norm, SiLU, one rope. SmolLM2 is one. Source: models.md of the Llama 2 and 3 releases,
// transformers' LlamaForCausalLM.
#include <fmt/format.h>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;

ModelSpec build(const DecoderSizes& sizes, const DecoderTraits& traits, const DecoderNames& names, bool tied,
                kernels::RopeParameters rope) {
  ModelSpec spec = build_decoder(sizes, traits, names, tied);
  spec.ropes.push_back(std::move(rope));
  for (auto& layer : spec.layers) layer.attention().rope = 0;
  return spec;
}

}  // namespace

Result<ModelSpec> llama_from_hugging_face(const HuggingFaceConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    auto bias = config.boolean_or(key, false);
    if (!bias) return std::unexpected(bias.error());
    if (*bias) return fail(ErrorKind::kUnsupported, std::string(key) + " is not supported", key);
  }
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  auto rope = hugging_face_rope(config, "", sizes->head_dim, kDefaultTheta);
  if (!rope) return std::unexpected(rope.error());
  auto tied = config.boolean_or("tie_word_embeddings", false);
  if (!tied) return std::unexpected(tied.error());

  const DecoderTraits traits{.architecture = "llama"};
  return build(*sizes, traits, hugging_face_names(traits), *tied, std::move(*rope));
}

Result<ModelSpec> llama_from_gguf(const GgufConfig& config) {
  auto sizes = decoder_sizes(config);
  if (!sizes) return std::unexpected(sizes.error());
  auto rope = gguf_rope(config, sizes->head_dim, kDefaultTheta);
  if (!rope) return std::unexpected(rope.error());
  // Loading undoes the interleaving of whole heads, which would part pairs from dimensions that do not turn.
  if (rope->rotary_dim != sizes->head_dim)
    return fail(ErrorKind::kUnsupported,
                fmt::format("rope.dimension_count {} is not supported; it must be the head size, {}", rope->rotary_dim,
                            sizes->head_dim),
                "rope.dimension_count");
  const bool tied = config.file().find("output.weight") == nullptr;
  const DecoderTraits traits{.architecture = "llama", .interleaved_qk = true};
  return build(*sizes, traits, gguf_names(), tied, std::move(*rope));
}

}  // namespace quire::model
