// gpt-oss: biases everywhere, a sink for each head, every other layer with a window, YaRN whose ramp ends between
// dimensions, and experts in every layer, with a clamped SwiGLU. Source: transformers' GptOssForCausalLM.
//
// Files of Hugging Face hold a layer's experts in one stack, gate and up in rows that alternate: MXFP4 [experts, out,
// in] as published, or floats [experts, in, out]. GGUF ones (`gpt-oss`) hold gate and up apart, and do not say how
// YaRN's ramp ends: it is the published models' own.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 150000;
constexpr double kDefaultAlpha = 1.702, kDefaultLimit = 7;
const DecoderTraits kTraits{
    .architecture = "gpt-oss", .qkv_bias = true, .output_bias = true, .sinks = true, .tied_head = false};

const ExpertNames kHuggingFaceNames{.scores = "mlp.router.weight",
                                    .correction = {},
                                    .gate = "mlp.experts.gate_up_proj",
                                    .up = "mlp.experts.gate_up_proj",
                                    .down = "mlp.experts.down_proj",
                                    .shared_gate = {},
                                    .shared_up = {},
                                    .shared_down = {},
                                    .shared_scores = {}};

struct GptOss {
  ExpertSizes experts;
  double alpha = kDefaultAlpha, limit = kDefaultLimit;
  int window = 0;
  std::vector<bool> windowed;  // of each layer; empty: every other one, from the first on
  // How a file of Hugging Face holds experts.
  bool alternating = false;  // rows of gate and up
  bool transposed = false;
};

std::string bias_of(const std::string& matrix) {
  const std::string end = ".weight";
  return matrix.ends_with(end) ? matrix.substr(0, matrix.size() - end.size()) + ".bias" : matrix + "_bias";
}

void complete(const GptOss& g, MlpSpec& expert) {
  expert.activation = Activation::kClampedSwiglu;
  expert.alpha = static_cast<float>(g.alpha);
  expert.limit = static_cast<float>(g.limit);
  expert.up_offset = 1;
  MatrixPart &gate = expert.gate_up.parts[0], &up = expert.gate_up.parts[1], &down = expert.down.parts[0];
  if (g.alternating) gate.groups = {.size = 2, .first = 0, .count = 1}, up.groups = {.size = 2, .first = 1, .count = 1};
  for (MatrixPart* part : {&gate, &up, &down}) {
    part->bias = bias_of(part->tensor);
    part->transposed = g.transposed;
  }
}

Result<ModelSpec> with_experts(ModelSpec spec, GptOss g, const ExpertNames& names, const std::string& layer_prefix) {
  g.experts.hidden = spec.hidden_size;
  if (auto ok = check_experts(g.experts, static_cast<int>(spec.layers.size())); !ok) return std::unexpected(ok.error());
  if (!(g.limit > 0)) return fail(ErrorKind::kCorruptFile, "swiglu_limit must be greater than 0", "swiglu_limit");
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (g.windowed.empty() ? i % 2 == 0 : g.windowed[i]) layer.attention().window = g.window;
    MoeSpec moe = make_experts(g.experts, names, fmt::format(fmt::runtime(layer_prefix), i));
    moe.scores.parts[0].bias = bias_of(moe.scores.parts[0].tensor);
    for (MlpSpec& expert : moe.experts) complete(g, expert);
    layer.mlp = std::move(moe);
  }
  return spec;
}

}  // namespace

Result<ModelSpec> gpt_oss_from_hugging_face(const HuggingFaceConfig& config) {
  DecoderTraits traits = kTraits;
  GptOss g;
  std::optional<Error> error;
  std::string method;
  take(config.boolean_or("attention_bias", true), traits.qkv_bias, error);
  take(config.integer("num_local_experts", 1, kernels::kMostExperts), g.experts.router.experts, error);
  take(config.integer("num_experts_per_tok", 1, kernels::kMostChosen), g.experts.router.chosen, error);
  take(config.number_or("swiglu_alpha", kDefaultAlpha), g.alpha, error);
  take(config.number_or("swiglu_limit", kDefaultLimit), g.limit, error);
  take(config.integer("sliding_window", 1, kMaxPositions), g.window, error);
  take(config.string_or("quantization_config/quant_method", ""), method, error);
  if (error) return std::unexpected(*error);
  traits.output_bias = traits.qkv_bias;
  g.alternating = true;
  g.transposed = method != "mxfp4";
  auto spec = plain_decoder(config, traits, kDefaultTheta);
  if (!spec) return spec;
  g.experts.size = spec->layers.front().dense().size;
  auto windowed = windowed_layers(config, static_cast<int>(spec->layers.size()));
  if (!windowed) return std::unexpected(windowed.error());
  g.windowed = std::move(*windowed);
  return with_experts(std::move(*spec), std::move(g), kHuggingFaceNames, hugging_face_names(traits).layer);
}

Result<ModelSpec> gpt_oss_from_gguf(const GgufConfig& config) {
  GptOss g;
  std::optional<Error> error;
  read_experts(config, g.experts, error);
  take(config.integer("attention.sliding_window", 1, kMaxPositions), g.window, error);
  if (error) return std::unexpected(*error);
  auto spec = plain_decoder(config, kTraits);
  if (!spec) return spec;
  const std::string prefix = gguf_names(kTraits).layer;
  spec->ropes.front().truncate = false;
  for (size_t i = 0; i < spec->layers.size(); ++i)
    spec->layers[i].mlp_norm.tensor = fmt::format(fmt::runtime(prefix), i) + "post_attention_norm.weight";
  return with_experts(std::move(*spec), std::move(g), gguf_expert_names(), prefix);
}

}  // namespace quire::model
