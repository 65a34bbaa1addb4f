// Qwen3-MoE: Qwen3 with experts in most layers, chosen by a softmax over all. Source: transformers'
// Qwen3MoeForCausalLM. GGUF files (`qwen3moe`) always renormalise the weights of the chosen.
#include <fmt/format.h>

#include <optional>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr int kDefaultWindow = 4096;
const DecoderTraits kTraits{.architecture = "qwen3moe", .qk_norm = true};

Result<ExpertSizes> expert_sizes(const HuggingFaceConfig& config) {
  ExpertSizes s;
  std::optional<Error> error;
  const char* count = config.has("num_experts") ? "num_experts" : "num_local_experts";
  take(config.integer(count, 1, kernels::kMostExperts), s.router.experts, error);
  take(config.integer("num_experts_per_tok", 1, kernels::kMostChosen), s.router.chosen, error);
  take(config.integer("moe_intermediate_size", 1, kMaxWidth), s.size, error);
  take(config.boolean_or("norm_topk_prob", false), s.router.renormalise, error);
  if (error) return std::unexpected(*error);
  return s;
}

Result<ExpertSizes> expert_sizes(const GgufConfig& config) {
  ExpertSizes s;
  std::optional<Error> error;
  read_experts(config, s, error);
  if (error) return std::unexpected(*error);
  return s;
}

Result<ModelSpec> with_experts(Result<ModelSpec> spec, Result<ExpertSizes> sizes, const ExpertNames& names,
                               const std::string& layer, const std::vector<bool>& sparse) {
  if (!spec) return spec;
  if (!sizes) return std::unexpected(sizes.error());
  sizes->hidden = spec->hidden_size;
  const auto layers = static_cast<int>(spec->layers.size());
  if (auto ok = check_experts(*sizes, layers); !ok) return std::unexpected(ok.error());
  for (int i = 0; i < layers; ++i)
    if (sparse[static_cast<size_t>(i)])
      spec->layers[static_cast<size_t>(i)].mlp = make_experts(*sizes, names, fmt::format(fmt::runtime(layer), i));
  return spec;
}

}  // namespace

Result<ModelSpec> qwen3_moe_from_hugging_face(const HuggingFaceConfig& config) {
  DecoderTraits traits = kTraits;
  if (auto read = read_biases(config, traits); !read) return std::unexpected(read.error());
  auto spec = plain_decoder(config, traits, kDefaultTheta);
  if (!spec) return spec;
  const auto layers = static_cast<int>(spec->layers.size());
  auto window = window_in_use(config, kDefaultWindow);
  if (!window) return std::unexpected(window.error());
  set_windows(*spec, *window);  // on every layer, whatever max_window_layers says
  auto sparse = sparse_layers(config, layers);
  if (!sparse) return std::unexpected(sparse.error());
  return with_experts(std::move(spec), expert_sizes(config), hugging_face_expert_names(""),
                      hugging_face_names(traits).layer, *sparse);
}

Result<ModelSpec> qwen3_moe_from_gguf(const GgufConfig& config) {
  auto spec = plain_decoder(config, kTraits);
  if (!spec) return spec;
  const std::vector<bool> sparse(spec->layers.size(), true);
  return with_experts(std::move(spec), expert_sizes(config), gguf_expert_names(), gguf_names(kTraits).layer, sparse);
}

}  // namespace quire::model
