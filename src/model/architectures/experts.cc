#include "model/architectures/experts.h"

#include <fmt/format.h>

#include <utility>

#include "model/architectures/decoder.h"

namespace quire::model {
namespace {

MlpSpec expert_of(int size, int hidden, std::vector<MatrixPart> gate_up, MatrixPart down) {
  return {.size = size, .gate_up = {std::move(gate_up), hidden}, .down = {{std::move(down)}, size, 1}};
}

}  // namespace

ExpertNames hugging_face_expert_names(const std::string& shared) {
  const std::string prefix = "mlp." + shared;
  return {.scores = "mlp.gate.weight",
          .correction = {},
          .gate = "mlp.experts.{}.gate_proj.weight",
          .up = "mlp.experts.{}.up_proj.weight",
          .down = "mlp.experts.{}.down_proj.weight",
          .gate_up = {},
          .shared_gate = prefix + ".gate_proj.weight",
          .shared_up = prefix + ".up_proj.weight",
          .shared_down = prefix + ".down_proj.weight",
          .shared_scores = {}};
}

ExpertNames gguf_expert_names() {
  return {.scores = "ffn_gate_inp.weight",
          .correction = {},
          .gate = "ffn_gate_exps.weight",
          .up = "ffn_up_exps.weight",
          .down = "ffn_down_exps.weight",
          .gate_up = {},
          .shared_gate = "ffn_gate_shexp.weight",
          .shared_up = "ffn_up_shexp.weight",
          .shared_down = "ffn_down_shexp.weight",
          .shared_scores = {}};
}

Result<std::vector<bool>> sparse_layers(const HuggingFaceConfig& config, int layers) {
  auto step = config.integer_or("decoder_sparse_step", 1, kMaxLayers, 1);
  if (!step) return std::unexpected(step.error());
  Result<std::vector<int>> dense = std::vector<int>();
  if (config.has("mlp_only_layers")) dense = config.integers("mlp_only_layers", 0, kMaxLayers);
  if (!dense) return std::unexpected(dense.error());
  std::vector<bool> sparse = every_nth(*step, layers);
  for (int layer : *dense)
    if (layer < layers) sparse[static_cast<size_t>(layer)] = false;
  return sparse;
}

void read_experts(const GgufConfig& config, ExpertSizes& sizes, std::optional<Error>& error) {
  take(config.integer("expert_count", 1, kernels::kMostExperts), sizes.router.experts, error);
  take(config.integer("expert_used_count", 1, kernels::kMostChosen), sizes.router.chosen, error);
  take(config.integer("expert_feed_forward_length", 1, kMaxWidth), sizes.size, error);
}

Result<void> check_experts(const ExpertSizes& s, int layers) {
  constexpr int kMostInAll = 1 << 17;
  if (s.shared_size > kMaxWidth)
    return fail(ErrorKind::kUnsupported,
                fmt::format("shared experts are {} wide; at most {} are supported", s.shared_size, kMaxWidth),
                "shared experts");
  if (int64_t{layers} * s.router.experts <= kMostInAll) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("{} layers of {} experts are not supported; there may be {} experts in all", layers,
                          s.router.experts, kMostInAll),
              "experts");
}

MoeSpec make_experts(const ExpertSizes& s, const ExpertNames& names, const std::string& prefix) {
  const auto part = [&](const std::string& name, int expert, int rows) {
    MatrixPart p{.tensor = prefix + name, .rows = rows};
    if (name.find("{}") != std::string::npos) {
      p.tensor = prefix + fmt::format(fmt::runtime(name), expert);
    } else {
      p.stack = s.router.experts;
      p.entry = expert;
    }
    return p;
  };
  MoeSpec moe;
  moe.router = s.router;
  moe.scores = {.parts = {{.tensor = prefix + names.scores, .rows = s.router.experts, .in_fp32 = true}},
                .cols = s.hidden};
  if (!names.correction.empty()) moe.correction = prefix + names.correction;
  for (int e = 0; e < s.router.experts; ++e) {
    auto gate_up = names.gate_up.empty() ? std::vector{part(names.gate, e, s.size), part(names.up, e, s.size)}
                                         : std::vector{part(names.gate_up, e, 2 * s.size)};
    moe.experts.push_back(expert_of(s.size, s.hidden, std::move(gate_up), part(names.down, e, s.hidden)));
  }
  if (s.shared_size == 0) return moe;
  moe.shared = expert_of(s.shared_size, s.hidden,
                         {{.tensor = prefix + names.shared_gate, .rows = s.shared_size},
                          {.tensor = prefix + names.shared_up, .rows = s.shared_size}},
                         {.tensor = prefix + names.shared_down, .rows = s.hidden});
  if (names.shared_scores.empty()) return moe;
  moe.shared_is_gated = true;
  moe.scores.parts.push_back({.tensor = prefix + names.shared_scores, .rows = 1, .in_fp32 = true});
  return moe;
}

}  // namespace quire::model
