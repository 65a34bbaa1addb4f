// Qwen2: a Llama with biases of q, k and v. Qwen3 (dense): without these, but with an RMSNorm on every q and k head
// before rope. Both may have windows. Embedding models are saved without their head's model: no name begins with
// "model." then. Source: transformers' Qwen2ForCausalLM and Qwen3ForCausalLM.
#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/multimodal.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;
const DecoderTraits kQwen2{.architecture = "qwen2", .qkv_bias = true}, kQwen3{.architecture = "qwen3", .qk_norm = true};

Result<ModelSpec> with_windows(const HuggingFaceConfig& config, const weights::TensorSource* tensors,
                               DecoderTraits traits) {
  traits.root = find_root(tensors, {"", "model."});
  auto spec = plain_decoder(config, traits, kDefaultTheta);
  if (!spec) return spec;
  auto windows = later_windows(config, static_cast<int>(spec->layers.size()));
  if (!windows) return std::unexpected(windows.error());
  set_windows(*spec, *windows);
  return spec;
}

}  // namespace

Result<ModelSpec> qwen2_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  return with_windows(config, tensors, kQwen2);
}

Result<ModelSpec> qwen3_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  DecoderTraits traits = kQwen3;
  if (auto read = read_biases(config, traits); !read) return std::unexpected(read.error());
  return with_windows(config, tensors, std::move(traits));
}

Result<ModelSpec> qwen2_from_gguf(const GgufConfig& config) { return plain_decoder(config, kQwen2); }
Result<ModelSpec> qwen3_from_gguf(const GgufConfig& config) { return plain_decoder(config, kQwen3); }

}  // namespace quire::model
