// Phi-3, and Phi-4 of the same form: a Llama whose q, k and v are one tensor, as gate and up are; part of a head turns,
// by longrope in models of long contexts; some have a window on every layer. Source: transformers' Phi3ForCausalLM.
#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;
const DecoderTraits kTraits{.architecture = "phi3", .fused = true};

}  // namespace

Result<ModelSpec> phi3_from_hugging_face(const HuggingFaceConfig& config) {
  auto window = window_or_null(config);
  if (!window) return std::unexpected(window.error());
  auto spec = plain_decoder(config, kTraits, kDefaultTheta);
  if (spec) set_windows(*spec, *window);
  return spec;
}

Result<ModelSpec> phi3_from_gguf(const GgufConfig& config) {
  auto window = config.integer_or("attention.sliding_window", 0, kMaxPositions, 0);
  if (!window) return std::unexpected(window.error());
  auto spec = plain_decoder(config, kTraits);
  if (spec) set_windows(*spec, *window);
  return spec;
}

}  // namespace quire::model
