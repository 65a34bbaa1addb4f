#include "model/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "base/overloaded.h"

namespace quire::model {
namespace {

// Calls f(name, matrix, part) for each tensor that the layer names, matrix and part being null where it is none to be
// packed. Parts of a stack come one by one.
void for_each_tensor(const LayerSpec& layer, const TensorVisitor& call) {
  const auto f = [&](const std::string& name) { call(name, nullptr, nullptr); };
  const auto norm = [&](const NormSpec& n) {
    if (n.has_weights()) f(n.tensor);
  };
  const auto matrix = [&](const MatrixSpec& m) {
    for (const auto& part : m.parts) {
      call(part.tensor, &m, &part);
      if (part.has_bias()) f(part.bias);
    }
  };
  const Overloaded mixer = {[&](const AttentionSpec& a) {
                              matrix(a.qkv);
                              norm(a.q_norm);
                              norm(a.k_norm);
                              if (!a.sinks.empty()) f(a.sinks);
                              matrix(a.output);
                            },
                            [&](const GatedDeltaSpec& g) {
                              matrix(g.input);
                              matrix(g.z);
                              matrix(g.a);
                              for (const ConvolutionPart& part : g.conv) f(part.tensor);
                              for (const std::string* name : {&g.decay, &g.dt_bias}) f(*name);
                              norm(g.norm);
                              matrix(g.output);
                            },
                            [&](const LatentSpec& l) {
                              matrix(l.input);
                              norm(l.query_norm);
                              norm(l.latent_norm);
                              matrix(l.query);
                              for (const std::string* name : l.expansion.tensors()) f(*name);
                              if (const auto& i = l.indexer) {
                                for (const std::string* name : {&i->norm_weight, &i->norm_bias}) f(*name);
                                if (i->shape.keeps_ring()) f(i->position_bias);
                              }
                              matrix(l.output);
                            }};
  for (const auto* streams : {&layer.attention_streams, &layer.mlp_streams}) {
    if (!*streams) continue;
    matrix((*streams)->scores);
    f((*streams)->scale);
    f((*streams)->bias);
  }
  norm(layer.attention_norm);
  std::visit(mixer, layer.mixer);
  norm(layer.attention_post_norm);
  norm(layer.mlp_norm);
  const auto mlp = [&](const MlpSpec& m) {
    matrix(m.gate_up);
    matrix(m.down);
  };
  std::visit(Overloaded{mlp,
                        [&](const MoeSpec& m) {
                          matrix(m.scores);
                          if (!m.correction.empty()) f(m.correction);
                          for (const MlpSpec& expert : m.experts) mlp(expert);
                          if (m.shared) mlp(*m.shared);
                        }},
             layer.mlp);
  norm(layer.mlp_post_norm);
}

// What all tensors of the layer begin with, up to a dot: "model.layers.3.".
std::string common_prefix(const LayerSpec& layer) {
  std::optional<std::string> common;
  for_each_tensor(layer, [&](const std::string& name, const MatrixSpec*, const MatrixPart*) {
    if (!common) common = name;
    common->resize(static_cast<size_t>(std::ranges::mismatch(*common, name).in1 - common->begin()));
  });
  return common->substr(0, common->rfind('.') + 1);
}

// What tensors beside the named one begin with: "output." for output.weight.
std::string stem(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

// Whether files carry the tensor though nothing needs it: rope frequencies follow from the configuration.
bool is_harmless(std::string_view name) {
  return std::ranges::any_of(std::array{".rotary_emb.inv_freq", ".attn_rot_embd"},
                             [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// The number of the layer that a tensor belongs to, by what stands before it: 12 in "model.layers.12.mlp".
std::optional<size_t> layer_number(std::string_view name, std::string_view before) {
  if (!name.starts_with(before)) return std::nullopt;
  name.remove_prefix(before.size());
  size_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (end == name.data() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return error == std::errc() ? number : std::numeric_limits<size_t>::max();
}

// Whether the tensor is of a layer that predicts further ahead: all such join two streams.
bool joins_streams(std::string_view name) { return name.find(".eh_proj.") != std::string_view::npos; }

// A layer behind the last: with it the model would say something else, unless it only predicts further ahead.
Result<void> refuse_more_layers(const ModelSpec& spec, const weights::TensorSource& tensors) {
  const std::string first = common_prefix(spec.layers.front());
  const std::string_view before = std::string_view(first).substr(0, first.rfind("0."));
  const size_t count = spec.layers.size() + static_cast<size_t>(spec.unread_layers);
  std::set<size_t> ahead;
  for (const weights::Tensor& tensor : tensors.tensors())
    if (const auto number = layer_number(tensor.name, before); number && joins_streams(tensor.name))
      ahead.insert(*number);
  for (const weights::Tensor& tensor : tensors.tensors()) {
    const auto number = layer_number(tensor.name, before);
    if (!number || *number < spec.layers.size()) continue;
    if (*number >= count || !ahead.contains(*number))
      return fail(ErrorKind::kCorruptFile,
                  fmt::format("tensor {} belongs to a layer that the configuration does not have: it says {} layers",
                              tensor.name, spec.layers.size()),
                  tensor.name);
  }
  return {};
}

// A tensor beside those of a layer, the embedding or the head, such as a bias, would change what the model says. Other
// tensors, such as those of a vision tower, belong to what is not run.
Result<void> refuse_unread(const ModelSpec& spec, const weights::TensorSource& tensors) {
  std::set<std::string, std::less<>> read, prefixes;
  for_each_name(spec, [&](const std::string& name) { read.insert(name); });
  for (const std::string& name : {spec.embedding, spec.final_norm.tensor, spec.head.parts.front().tensor})
    prefixes.insert(stem(name));
  for (const LayerSpec& layer : spec.layers) prefixes.insert(common_prefix(layer));
  prefixes.erase("");
  for (const weights::Tensor& tensor : tensors.tensors()) {
    if (read.contains(tensor.name) || is_harmless(tensor.name)) continue;
    for (size_t dot = 0; (dot = tensor.name.find('.', dot)) != std::string::npos; ++dot)
      if (prefixes.contains(std::string_view(tensor.name).substr(0, dot + 1)))
        return fail(ErrorKind::kUnsupported,
                    fmt::format("tensor {} is not supported: {} models run without it, which would give other answers "
                                "than this checkpoint means",
                                tensor.name, spec.architecture),
                    tensor.name);
  }
  return {};
}

}  // namespace

MatrixSpec embedding_of(const ModelSpec& spec) {
  return {.parts = {{.tensor = spec.embedding, .rows = spec.vocab_size}}, .cols = spec.hidden_size};
}

void for_each_tensor(const ModelSpec& spec, const TensorVisitor& f) {
  std::set<std::string_view> seen;
  const auto once = [&](const std::string& name, const MatrixSpec* matrix, const MatrixPart* part) {
    if (seen.insert(name).second) f(name, matrix, part);
  };
  const MatrixSpec embedding = embedding_of(spec);
  const MatrixSpec& first = spec.tied_head() ? spec.head : embedding;
  once(spec.embedding, &first, &first.parts.front());
  for (const LayerSpec& layer : spec.layers) for_each_tensor(layer, once);
  once(spec.final_norm.tensor, nullptr, nullptr);
  for (const auto& part : spec.head.parts) once(part.tensor, &spec.head, &part);
}

void for_each_name(const ModelSpec& spec, const std::function<void(const std::string&)>& f) {
  for_each_tensor(spec, [&](const std::string& name, const MatrixSpec*, const MatrixPart*) { f(name); });
}

Result<void> check_names(const ModelSpec& spec, const weights::TensorSource& tensors) {
  if (auto more = refuse_more_layers(spec, tensors); !more) return more;
  if (auto unread = refuse_unread(spec, tensors); !unread) return unread;
  Result<void> all;
  for_each_name(spec, [&](const std::string& name) {
    if (!all) return;
    if (auto tensor = tensors.require(name); !tensor) all = std::unexpected(tensor.error());
  });
  return all;
}

}  // namespace quire::model
