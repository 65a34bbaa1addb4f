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
  if (donor == nullptr) return bad("which is no earlier layer");
  if (!donor->keeps_own()) return bad("which keeps nothing itself");
  if (donor->kv_heads != a.kv_heads || donor->head_dim != a.head_dim)
    return bad(fmt::format("which has {} kv heads of {}, not {} of {}", donor->kv_heads, donor->head_dim, a.kv_heads,
                           a.head_dim));
  if (donor->window != a.window || donor->chunk != a.chunk) return bad("which has another window or chunk");
  if (a.qkv.rows() != a.q_heads * a.head_dim || a.k_norm.present())
    return bad("so it can have no keys and values of its own");
  return {};
}

}  // namespace

int MatrixSpec::rows() const {
  int total = 0;
  for (const auto& part : parts) total += part.rows;
  return total;
}

Result<void> validate(const ModelSpec& spec) {
  std::map<std::string_view, const AttentionSpec*> earlier;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    if (a.window > 0 && a.chunk > 0)
      return fail(ErrorKind::kUnsupported, fmt::format("layer {} has both a window and a chunk", a.name), a.name);
    if (!a.keeps_own()) {
      const auto donor = earlier.find(a.donor);
      if (auto ok = check_donor(a, donor == earlier.end() ? nullptr : donor->second); !ok) return ok;
    }
    if (!earlier.emplace(a.name, &a).second)
      return fail(ErrorKind::kUnsupported, fmt::format("two layers are called {}", a.name), a.name);
  }
  return {};
}

}  // namespace quire::model
