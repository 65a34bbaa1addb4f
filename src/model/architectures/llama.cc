// Llama: pre-norm, no q/k norm, SiLU, one rope. SmolLM2 is one, and Mistral but for its window on every layer; files of
// GGUF call both llama. Source: models.md of the Llama 2 and 3 releases, transformers' LlamaForCausalLM and
// MistralForCausalLM.
#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;

}  // namespace

Result<ModelSpec> llama_from_hugging_face(const HuggingFaceConfig& config) {
  DecoderTraits traits{.architecture = "llama"};
  if (auto read = read_biases(config, traits); !read) return std::unexpected(read.error());
  return plain_decoder(config, traits, kDefaultTheta);
}

Result<ModelSpec> mistral_from_hugging_face(const HuggingFaceConfig& config) {
  auto window = window_or_null(config);
  if (!window) return std::unexpected(window.error());
  auto spec = plain_decoder(config, {.architecture = "mistral"}, kDefaultTheta);
  if (spec) set_windows(*spec, *window);
  return spec;
}

Result<ModelSpec> llama_from_gguf(const GgufConfig& config) {
  auto window = config.integer_or("attention.sliding_window", 0, kMaxPositions, 0);
  if (!window) return std::unexpected(window.error());
  DecoderTraits traits{.architecture = "llama", .interleaved_qk = true};
  auto spec = plain_decoder(config, traits);
  if (spec) set_windows(*spec, *window);
  return spec;
}

}  // namespace quire::model
