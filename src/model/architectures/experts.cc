#include "model/architectures/experts.h"

#include <fmt/format.h>

#include <utility>

#include "model/config.h"

namespace quire::model {
namespace {

MlpSpec expert_of(int size, int hidden, MatrixPart gate, MatrixPart up, MatrixPart down) {
  return {size, Activation::kSilu, {{std::move(gate), std::move(up)}, hidden}, {{std::move(down)}, size, 1}};
}

}  // namespace

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
  moe.scores = {
      .parts = {{.tensor = prefix + names.scores, .rows = s.router.experts}}, .cols = s.hidden, .in_fp32 = true};
  if (!names.correction.empty()) moe.correction = prefix + names.correction;
  for (int e = 0; e < s.router.experts; ++e)
    moe.experts.push_back(expert_of(s.size, s.hidden, part(names.gate, e, s.size), part(names.up, e, s.size),
                                    part(names.down, e, s.hidden)));
  if (s.shared_size == 0) return moe;
  moe.shared = expert_of(s.shared_size, s.hidden, {.tensor = prefix + names.shared_gate, .rows = s.shared_size},
                         {.tensor = prefix + names.shared_up, .rows = s.shared_size},
                         {.tensor = prefix + names.shared_down, .rows = s.hidden});
  if (names.shared_scores.empty()) return moe;
  moe.shared_is_gated = true;
  moe.scores.parts.push_back({.tensor = prefix + names.shared_scores, .rows = 1});
  return moe;
}

}  // namespace quire::model
