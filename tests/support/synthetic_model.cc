#include "support/synthetic_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/dtype.h"

namespace quire::test {
namespace {

constexpr int kHidden = 64;
constexpr int kVocabulary = 96;
constexpr int kMlp = 96;
constexpr int kMaxPositions = 512;

std::string layer_name(int index) { return "layers." + std::to_string(index); }

}  // namespace

SyntheticModel::SyntheticModel(std::span<const SyntheticLayer> layers, unsigned seed) : random_(seed) {
  spec_.architecture = "synthetic";
  spec_.hidden_size = kHidden;
  spec_.vocab_size = kVocabulary;
  spec_.max_positions = kMaxPositions;
  spec_.norm_epsilon = 1e-5F;
  spec_.embedding = "embedding.weight";
  tensor(spec_.embedding, {kVocabulary, kHidden}, 0, 1);
  if (const int count = layers.front().streams; count > 0) spec_.streams = {count, 5, 1e-4F};
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string prefix = layer_name(static_cast<int>(i)) + ".";
    model::LayerSpec layer;
    if (spec_.streams) {
      layer.attention_streams = streams(prefix + "attention_streams.");
      layer.mlp_streams = streams(prefix + "mlp_streams.");
    }
    layer.attention_norm = norm(prefix + "attention_norm", kHidden);
    const auto index = static_cast<int>(i);
    if (layers[i].state_heads > 0) {
      layer.mixer = gated_delta(index, layers[i]);
    } else if (layers[i].rank > 0) {
      layer.mixer = latent(index, layers[i]);
    } else {
      layer.mixer = attention(index, layers[i]);
    }
    layer.mlp_norm = norm(prefix + "mlp_norm", kHidden);
    layer.dense().size = kMlp;
    layer.dense().gate_up = {{part(prefix + "gate", kMlp, kHidden), part(prefix + "up", kMlp, kHidden)}, kHidden};
    layer.dense().down = {{part(prefix + "down", kHidden, kMlp)}, kMlp, 1};
    spec_.layers.push_back(std::move(layer));
  }
  spec_.final_norm = norm("final_norm", kHidden);
  spec_.head = {{part("head.weight", kVocabulary, kHidden)}, kHidden};
}

model::AttentionSpec SyntheticModel::attention(int index, const SyntheticLayer& layer) {
  const std::string prefix = layer_name(index) + ".attention.";
  const int q_rows = layer.q_heads * layer.head_dim, kv_rows = layer.kv_heads * layer.head_dim;
  model::AttentionSpec a;
  a.name = layer_name(index);
  a.q_heads = layer.q_heads;
  a.kv_heads = layer.kv_heads;
  a.head_dim = layer.head_dim;
  a.scale = 1 / std::sqrt(static_cast<float>(layer.head_dim));
  a.window = layer.window;
  a.chunk = layer.chunk;
  a.rope = rope_of(layer.head_dim);
  a.gated = layer.gated;
  std::vector<model::MatrixPart> q;
  if (layer.gated) {
    q = grouped(prefix + "q_gate", layer.q_heads, std::array{layer.head_dim, layer.head_dim}, kHidden);
  } else {
    q.push_back(part(prefix + "q", q_rows, kHidden));
  }
  a.qkv = {{q.front()}, kHidden};
  a.q_norm = norm(prefix + "q_norm", layer.head_dim);
  if (layer.donor >= 0) {
    a.donor = layer_name(layer.donor);
  } else {
    a.qkv.parts.push_back(part(prefix + "k", kv_rows, kHidden));
    a.qkv.parts.push_back(part(prefix + "v", kv_rows, kHidden));
    a.k_norm = norm(prefix + "k_norm", layer.head_dim);
  }
  if (layer.gated) a.qkv.parts.push_back(q.back());
  a.output = {{part(prefix + "o", kHidden, q_rows)}, q_rows, q_rows / layer.kv_heads};
  return a;
}

model::GatedDeltaSpec SyntheticModel::gated_delta(int index, const SyntheticLayer& layer) {
  const std::string prefix = layer_name(index) + ".delta.";
  model::GatedDeltaSpec g;
  g.name = layer_name(index);
  g.shape = {.heads = layer.state_heads,
             .key_heads = layer.key_heads > 0 ? layer.key_heads : layer.state_heads,
             .tiled = layer.tiled,
             .key_dim = layer.head_dim,
             .value_dim = 2 * layer.head_dim,
             .conv_width = 4,
             .decay_floor = layer.gate_rank > 0 ? -1.5F : 0};
  const int k = g.shape.key_rows(), v = g.shape.value_rows(), h = g.shape.heads;
  if (layer.key_heads > 0) {
    const int groups = layer.key_heads;
    g.input = {grouped(prefix + "qkvz", groups, std::array{k / groups, k / groups, v / groups, v / groups}, kHidden),
               kHidden};
    const auto ba = grouped(prefix + "ba", groups, std::array{h / groups, h / groups}, kHidden);
    g.input.parts.insert(g.input.parts.end(), {ba.back(), ba.front()});
  } else {
    g.gate_rank = layer.gate_rank;
    g.input = {{part(prefix + "q", k, kHidden), part(prefix + "k", k, kHidden), part(prefix + "v", v, kHidden),
                part(prefix + "z", g.z_width(), kHidden), part(prefix + "a", g.a_width(), kHidden),
                part(prefix + "b", h, kHidden)},
               kHidden};
  }
  if (g.narrows_gates()) {
    g.sigmoid_gate = true;
    g.z = {{part(prefix + "z_up", v, g.gate_rank)}, g.gate_rank};
    g.a = {{part(prefix + "a_up", g.shape.decays(), g.gate_rank)}, g.gate_rank};
    g.conv = {{prefix + "q_conv", k}, {prefix + "k_conv", k}, {prefix + "v_conv", v}};
  } else {
    g.conv = {{prefix + "conv", g.shape.channels()}};
  }
  for (const model::ConvolutionPart& conv : g.conv) tensor(conv.tensor, {conv.channels, 4}, 0, 0.5F);
  g.decay = prefix + "decay";
  g.dt_bias = prefix + "dt_bias";
  // States live for some twenty tokens.
  tensor(g.decay, {h}, g.narrows_gates() ? 0 : -3, 1);
  tensor(g.dt_bias, {g.shape.decays()}, g.narrows_gates() ? -3 : 0, 1);
  g.norm = norm(prefix + "norm", g.shape.value_dim);
  g.output = {{part(prefix + "o", kHidden, v)}, v, v / h};
  return g;
}

model::StreamsSpec SyntheticModel::streams(const std::string& prefix) {
  const int count = spec_.streams->count, scores = spec_.streams->scores();
  model::StreamsSpec s{
      {{part(prefix + "scores", scores, count * kHidden)}, count * kHidden}, prefix + "scale", prefix + "bias"};
  s.scores.parts.front().in_fp32 = true;
  tensor(s.scale, {3}, 1, 0.3F);
  tensor(s.bias, {scores}, 0, 0.5F);
  return s;
}

int SyntheticModel::rope_of(int dim) {
  const auto same = std::ranges::find(spec_.ropes, dim, &kernels::RopeParameters::rotary_dim);
  const auto index = static_cast<int>(same - spec_.ropes.begin());
  if (same == spec_.ropes.end()) spec_.ropes.push_back({.rotary_dim = dim});
  return index;
}

model::LatentSpec SyntheticModel::latent(int index, const SyntheticLayer& layer) {
  const std::string prefix = layer_name(index) + ".latent.";
  const int turned = layer.turned ? layer.head_dim / 2 : 0;
  model::LatentSpec l;
  l.name = layer_name(index);
  l.shape = {.heads = layer.q_heads,
             .nope_dim = layer.head_dim,
             .rope_dim = turned,
             .value_dim = layer.head_dim + 4,
             .rank = layer.rank};
  l.query_rank = layer.narrow ? 24 : 0;
  l.scale = 1 / std::sqrt(static_cast<float>(l.shape.query_dim()));
  l.rope = layer.turned ? rope_of(turned) : -1;
  l.norm_epsilon = spec_.norm_epsilon;
  l.input = {
      {part(prefix + "query_down", l.latent_offset(), kHidden), part(prefix + "latent", l.shape.row_dim(), kHidden)},
      kHidden};
  if (layer.narrow) l.query_norm = norm(prefix + "q_norm", l.query_rank);
  l.latent_norm = norm(prefix + "latent_norm", layer.rank);
  if (layer.narrow) l.query = {{part(prefix + "query_up", l.query_rows(), l.query_rank)}, l.query_rank};
  l.expansion.both = part(prefix + "expansion", l.shape.expansion_rows(), layer.rank).tensor;
  if (layer.pool > 0) indexer(prefix, layer, l);
  l.reads_last_choice = layer.follows;
  l.output = {{part(prefix + "o", kHidden, l.value_rows())}, l.value_rows(), l.shape.value_dim};
  return l;
}

void SyntheticModel::indexer(const std::string& prefix, const SyntheticLayer& layer, model::LatentSpec& l) {
  model::PooledIndexSpec& i = l.indexer.emplace();
  i.keys_name = l.name + ".pooled_keys";
  i.shape = {.pool = layer.pool, .heads = 3, .dim = 12, .top_k = layer.top_k};
  if (!i.shape.keeps_ring()) i.rope = l.rope;
  i.norm_epsilon = 1e-6F;
  i.norm_weight = norm(prefix + "key_norm", i.shape.dim).tensor;
  i.norm_bias = prefix + "key_bias";
  tensor(i.norm_bias, {i.shape.dim}, 0, 0.5F);
  l.input.parts.push_back(part(prefix + "key", i.shape.dim, kHidden));
  if (i.shape.keeps_ring()) {
    i.ring_name = l.name + ".open_pool";
    i.position_bias = prefix + "position_bias";
    tensor(i.position_bias, {layer.pool, i.shape.dim}, 0, 1);
    l.input.parts.push_back(part(prefix + "gate", i.shape.dim, kHidden));
  }
  l.input.parts.push_back(part(prefix + "weights", i.shape.heads, kHidden));
  l.query.parts.push_back(part(prefix + "index_query", i.query_rows(), l.query_rank));
}

void SyntheticModel::tensor(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
  size_t count = 1;
  for (const int64_t n : shape) count *= static_cast<size_t>(n);
  auto& data = data_.emplace_back(count);
  // Sums of raw draws: std::normal_distribution differs between libraries.
  for (uint16_t& value : data) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(random_() >> 8) / (1 << 24) - 0.5F;
    value = float_to_bf16(mean + deviation * sum * 1.7320508F);
  }
  tensors_.push_back({name, weights::WeightFormat::kBF16, std::move(shape), std::as_bytes(std::span(data))});
}

model::MatrixPart SyntheticModel::part(const std::string& name, int rows, int cols) {
  tensor(name, {rows, cols}, 0, 1 / std::sqrt(static_cast<float>(cols)));
  return {name, rows, 0};
}

std::vector<model::MatrixPart> SyntheticModel::grouped(const std::string& name, int groups, std::span<const int> counts,
                                                       int cols) {
  const int size = std::accumulate(counts.begin(), counts.end(), 0);
  part(name, groups * size, cols);
  std::vector<model::MatrixPart> parts;
  int first = 0;
  for (const int count : counts) {
    parts.push_back({.tensor = name, .rows = groups * count, .groups = model::RowGroups{size, first, count}});
    first += count;
  }
  return parts;
}

model::NormSpec SyntheticModel::norm(const std::string& name, int size) {
  // Large q and k make attention choose; the others stay near 1.
  const float mean = name.ends_with("q_norm") ? 2.0F : 1.0F;
  tensor(name, {size}, mean, 0.1F);
  return {name, size, 0};
}

std::vector<double> SyntheticModel::values(std::string_view name) const {
  const weights::Tensor* tensor = find(name);
  std::vector<float> wide(static_cast<size_t>(tensor->elements()));
  weights::widen(*tensor, wide);
  return {wide.begin(), wide.end()};
}

const weights::Tensor* SyntheticModel::find(std::string_view name) const {
  const auto it = std::ranges::find(tensors_, name, &weights::Tensor::name);
  return it == tensors_.end() ? nullptr : &*it;
}

Result<const weights::Tensor*> SyntheticModel::require(std::string_view name) const {
  if (const weights::Tensor* tensor = find(name)) return tensor;
  return fail(ErrorKind::kCorruptFile, "no tensor " + std::string(name), std::string(name));
}

}  // namespace quire::test
