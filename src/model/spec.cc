#include "model/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

#include "base/overloaded.h"

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
  if (a.k_norm.present()) return bad("so it can have no keys of its own to norm");
  return {};
}

// What a layer is checked against.
struct Surroundings {
  std::map<std::string_view, const AttentionSpec*> earlier;  // null: a name without keys and values of its own
  bool chosen = false;                                       // whether an earlier layer has an indexer
  std::span<const kernels::RopeParameters> ropes;
};

// The rope of layer `name` is one of the model's, and turns no more than the `dims` dimensions of a head.
Result<void> check_rope(const std::string& name, int rope, int dims, const Surroundings& around) {
  if (rope < 0) return {};
  if (rope >= std::ssize(around.ropes))
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} has rope {} of {}", name, rope, around.ropes.size()),
                name);
  const int turned = around.ropes[static_cast<size_t>(rope)].rotary_dim;
  if (turned <= dims) return {};
  return fail(ErrorKind::kUnsupported, fmt::format("layer {} turns {} of {} dimensions", name, turned, dims), name);
}

Result<void> check(const AttentionSpec& a, const Surroundings& around) {
  if (a.window > 0 && a.chunk > 0)
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} has both a window and a chunk", a.name), a.name);
  if (!(a.soft_cap >= 0))
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} has the soft cap {}", a.name, a.soft_cap), a.name);
  if (auto ok = check_rope(a.name, a.rope, a.head_dim, around); !ok) return ok;
  if (a.qkv.rows() != a.input_rows())
    return fail(ErrorKind::kUnsupported,
                fmt::format("layer {} makes {} rows instead of {}: q{}{}", a.name, a.qkv.rows(), a.input_rows(),
                            a.keeps_own() ? ", k, v" : ", and no keys and values of its own", a.gated ? ", gates" : ""),
                a.name);
  if (a.keeps_own()) return {};
  const auto donor = around.earlier.find(a.donor);
  return check_donor(a, donor == around.earlier.end() ? nullptr : donor->second);
}

Result<void> check(const GatedDeltaSpec& g, const Surroundings&) {
  if (auto ok = kernels::check_gated_delta_shape(g.shape); !ok) return ok;
  const auto bad = [&](std::string why) {
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} {}", g.name, why), g.name);
  };
  if (g.input.rows() != g.input_rows())
    return bad(fmt::format("makes {} rows instead of q, k, v, z, a and b", g.input.rows()));
  const int z = g.narrows_gates() ? g.shape.value_rows() : 0, a = g.narrows_gates() ? g.shape.decays() : 0;
  if (g.z.rows() != z || g.a.rows() != a)
    return bad(fmt::format("makes {} and {} rows of gates, not {} and {}", g.z.rows(), g.a.rows(), z, a));
  if (g.z.cols != g.gate_rank || g.a.cols != g.gate_rank)
    return bad(fmt::format("makes gates from {} and {} numbers, not from {}", g.z.cols, g.a.cols, g.gate_rank));
  int channels = 0;
  for (const ConvolutionPart& part : g.conv) channels += part.channels;
  if (channels == g.shape.channels()) return {};
  return bad(fmt::format("has a convolution over {} channels, not over {}", channels, g.shape.channels()));
}

Result<void> check(const LatentSpec& l, const Surroundings& around) {
  if (auto ok = kernels::check_latent_shape(l.shape); !ok) return ok;
  const auto bad = [&](std::string why) {
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} {}", l.name, why), l.name);
  };
  int input = l.latent_offset() + l.shape.row_dim(), queries = l.narrows_queries() ? l.query_rows() : 0;
  if (l.indexer) {
    if (auto ok = kernels::check_pooled_index_shape(l.indexer->shape); !ok) return ok;
    if (!l.narrows_queries()) return bad("has an indexer, but no narrow queries for it");
    if (l.reads_last_choice) return bad("has an indexer, and reads what another one chose");
    if (auto ok = check_rope(l.name, l.indexer->rope, l.indexer->shape.dim, around); !ok) return ok;
    input += l.indexer->input_rows();
    queries += l.indexer->query_rows();
  }
  if (l.reads_last_choice && !around.chosen) return bad("reads what an indexer before it chose, and there is none");
  if (l.query_norm.present() != l.narrows_queries()) return bad("must have a norm for narrow queries alone");
  if (l.query.cols != l.query_rank)
    return bad(fmt::format("makes queries from {} numbers, not from {}", l.query.cols, l.query_rank));
  if (l.input.rows() != input)
    return bad(
        fmt::format("makes {} rows instead of {}: queries, latent and rope, and the indexer's", l.input.rows(), input));
  if (l.query.rows() != queries) return bad(fmt::format("makes {} rows of queries, not {}", l.query.rows(), queries));
  if (l.shape.rope_dim > 0 && l.rope < 0) return bad("has rope dimensions, but no rope");
  if (l.shape.rope_dim == 0 && l.rope >= 0) return bad("has a rope, but no dimensions for it");
  return check_rope(l.name, l.rope, l.shape.rope_dim, around);
}

// Of the layer called so.
Result<void> check(const MoeSpec& m, const std::string& name) {
  if (auto ok = kernels::check_router_shape(m.router); !ok) return ok;
  const auto bad = [&](std::string why) {
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} {}", name, why), name);
  };
  if (std::ssize(m.experts) != m.router.experts)
    return bad(fmt::format("has {} experts, but a router for {}", m.experts.size(), m.router.experts));
  if (m.shared_is_gated && !m.shared) return bad("has a gate, but no shared expert");
  if (m.scores.rows() != m.router.experts + (m.shared_is_gated ? 1 : 0))
    return bad(fmt::format("makes {} scores for {} experts", m.scores.rows(), m.router.experts));
  const MlpSpec& first = m.experts.front();
  for (const MlpSpec& expert : m.experts)
    if (expert.size != first.size || expert.activation != first.activation)
      return bad("has experts of different kinds");
  return {};
}

// Every sublayer has streams, or none.
Result<void> check_streams(const ModelSpec& spec, const LayerSpec& layer) {
  const std::string& name = name_of(layer.mixer);
  const auto bad = [&](std::string why) {
    return fail(ErrorKind::kUnsupported, fmt::format("layer {} {}", name, why), name);
  };
  for (const auto* streams : {&layer.attention_streams, &layer.mlp_streams}) {
    if (streams->has_value() != spec.streams.has_value()) return bad("must have residual streams where the model does");
    if (!*streams) continue;
    const MatrixSpec& scores = (*streams)->scores;
    if (scores.cols != spec.streams->count * spec.hidden_size || scores.rows() != spec.streams->scores())
      return bad(fmt::format("makes {} scores of {} numbers for {} residual streams", scores.rows(), scores.cols,
                             spec.streams->count));
  }
  if (spec.streams && (layer.attention_post_norm.present() || layer.mlp_post_norm.present()))
    return bad("has residual streams, and norms behind attention or MLP");
  return {};
}

// All names that the layer has in the cache plan.
std::vector<std::string_view> cache_names(const Mixer& mixer) {
  std::vector<std::string_view> names = {name_of(mixer)};
  const auto* latent = std::get_if<LatentSpec>(&mixer);
  if (latent == nullptr || !latent->indexer) return names;
  names.push_back(latent->indexer->keys_name);
  if (latent->indexer->shape.keeps_ring()) names.push_back(latent->indexer->ring_name);
  return names;
}

}  // namespace

std::vector<const MatrixSpec*> LayerSpec::matrices() const {
  std::vector<const MatrixSpec*> all =
      std::visit(Overloaded{[](const AttentionSpec& a) { return std::vector{&a.qkv, &a.output}; },
                            [](const GatedDeltaSpec& g) {
                              return g.narrows_gates() ? std::vector{&g.input, &g.z, &g.a, &g.output}
                                                       : std::vector{&g.input, &g.output};
                            },
                            [](const LatentSpec& l) {
                              return l.narrows_queries() ? std::vector{&l.input, &l.query, &l.output}
                                                         : std::vector{&l.input, &l.output};
                            }},
                 mixer);
  const auto add = [&](const MlpSpec& m) { all.insert(all.end(), {&m.gate_up, &m.down}); };
  std::visit(Overloaded{add,
                        [&](const MoeSpec& m) {
                          for (const MlpSpec& expert : m.experts) add(expert);
                          if (m.shared) add(*m.shared);
                        }},
             mlp);
  return all;
}

int MatrixSpec::rows() const {
  int total = 0;
  for (const auto& part : parts) total += part.rows;
  return total;
}

const std::string& name_of(const Mixer& mixer) {
  return std::visit([](const auto& m) -> const std::string& { return m.name; }, mixer);
}

void set_longest(ModelSpec& spec, int64_t max_model_len) {
  for (const auto& rope : spec.ropes)
    if (rope.type == kernels::RopeType::kDynamic)
      spec.max_positions = std::max(
          spec.max_positions,
          static_cast<int64_t>(std::min(static_cast<double>(max_model_len), rope.factor * rope.original_max_position)));
  for (auto& rope : spec.ropes) rope.longest = static_cast<double>(std::min(max_model_len, spec.max_positions));
}

Result<void> validate(const ModelSpec& spec) {
  Surroundings around{.earlier = {}, .chosen = false, .ropes = spec.ropes};
  if (spec.streams)
    if (auto ok = kernels::check_stream_shape(*spec.streams); !ok) return ok;
  for (const LayerSpec& layer : spec.layers) {
    if (auto ok = check_streams(spec, layer); !ok) return ok;
    if (auto ok = std::visit([&](const auto& mixer) { return check(mixer, around); }, layer.mixer); !ok) return ok;
    if (const auto* moe = std::get_if<MoeSpec>(&layer.mlp))
      if (auto ok = check(*moe, name_of(layer.mixer)); !ok) return ok;
    for (const std::string_view name : cache_names(layer.mixer))
      if (!around.earlier.emplace(name, std::get_if<AttentionSpec>(&layer.mixer)).second)
        return fail(ErrorKind::kUnsupported, fmt::format("two layers are called {}", name), std::string(name));
    const auto* latent = std::get_if<LatentSpec>(&layer.mixer);
    around.chosen |= latent != nullptr && latent->indexer.has_value();
  }
  return {};
}

}  // namespace quire::model
