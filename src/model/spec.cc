#include "model/spec.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

namespace quire::model {
namespace {

Result<void> check_donor(const AttentionSpec& a, const AttentionSpec* donor) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} reads the cache of {}, {}", a.name, a.donor, why),
                a.name);
  };
  if (donor == nullptr) return bad("which is no earlier layer that attends");
  if (!donor->keeps_own()) return bad("which keeps nothing itself");
  if (donor->kv_heads != a.kv_heads || donor->head_dim != a.head_dim)
    return bad(fmt::format("which has {} kv heads of {}, not {} of {}", donor->kv_heads, donor->head_dim, a.kv_heads,
                           a.head_dim));
  if (donor->window != a.window || donor->chunk != a.chunk) return bad("which has another window or chunk");
  if (a.qkv.rows() != a.q_heads * a.head_dim || a.k_norm.present())
    return bad("so it can have no keys and values of its own");
  return {};
}

using Layers = std::map<std::string_view, const AttentionSpec*>;

Result<void> check_attention(const AttentionSpec& a, const Layers& earlier) {
  if (a.window > 0 && a.chunk > 0)
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} has both a window and a chunk", a.name), a.name);
  if (a.keeps_own()) return {};
  const auto donor = earlier.find(a.donor);
  return check_donor(a, donor == earlier.end() ? nullptr : donor->second);
}

Result<void> check_gated_delta(const GatedDeltaSpec& g) {
  if (auto ok = kernels::check_gated_delta_shape(g.shape); !ok) return ok;
  if (g.input.rows() == g.shape.channels() + g.value_rows() + 2 * g.shape.heads) return {};
  return fail(ErrorKind::kUnsupported,
              fmt::format("layer {} makes {} rows instead of q, k, v, z, a and b", g.name, g.input.rows()), g.name);
}

}  // namespace

int MatrixSpec::rows() const {
  int total = 0;
  for (const auto& part : parts) total += part.rows;
  return total;
}

const std::string& name_of(const Mixer& mixer) {
  return std::visit([](const auto& m) -> const std::string& { return m.name; }, mixer);
}

Result<void> validate(const ModelSpec& spec) {
  std::map<std::string_view, const AttentionSpec*> earlier;  // null: a layer without keys and values
  for (const LayerSpec& layer : spec.layers) {
    const auto* a = std::get_if<AttentionSpec>(&layer.mixer);
    if (a != nullptr) {
      if (auto ok = check_attention(*a, earlier); !ok) return ok;
    } else if (auto ok = check_gated_delta(std::get<GatedDeltaSpec>(layer.mixer)); !ok) {
      return ok;
    }
    const std::string& name = name_of(layer.mixer);
    if (!earlier.emplace(name, a).second)
      return fail(ErrorKind::kUnsupported, fmt::format("two layers are called {}", name), name);
  }
  return {};
}

}  // namespace quire::model
