// Llama 4 (text): layers with rope attend within chunks, the others, usually every fourth, to everything without rope,
// with queries that grow with their position; queries and keys of layers with rope may be brought to length 1. Some
// layers have experts, whose weights, sigmoids of the scores, multiply what goes into them, beside a shared one.
// Published as text and vision, and run as text. Source: transformers' Llama4ForCausalLM and
// Llama4ForConditionalGeneration. GGUF files (`llama4`) leave out what the published models have in common.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/decoder.h"
#include "model/architectures/experts.h"
#include "model/architectures/multimodal.h"

namespace quire::model {
namespace {

constexpr double kDefaultTheta = 500000;
constexpr int kDefaultChunk = 8192;
constexpr QueryGrowth kDefaultGrowth{.step = 8192, .strength = 0.1};
constexpr int kDefaultInterval = 4;       // every such layer has no rope
constexpr int kExpertsWithoutNorm = 128;  // of the published model that has no norm, which GGUF does not say

// What text_config leaves out.
constexpr std::string_view kDefaults = R"({
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 1, "num_local_experts": 16})";
constexpr std::array<std::string_view, 7> kOfImages = {"vision_config",     "boi_token_index", "eoi_token_index",
                                                       "image_token_index", "boi_token_id",    "eoi_token_id",
                                                       "image_token_id"};

struct Llama4 {
  DecoderSizes sizes;  // intermediate: of dense layers
  DecoderTraits traits{.architecture = "llama4"};
  ExpertSizes experts;
  kernels::RopeParameters rope;
  bool tied = false;
  bool normed = true;  // queries and keys of layers with rope
  int chunk = kDefaultChunk;
  QueryGrowth growth = kDefaultGrowth;  // in layers without rope
  // Of each layer.
  std::vector<int> with_rope;
  std::vector<bool> chunked, sparse;
};

struct Names {
  DecoderNames decoder;
  ExpertNames experts;
  bool transposed = false;  // experts
};

Names hugging_face(const DecoderTraits& traits, bool stacked) {
  Names n{hugging_face_names(traits), {}, stacked};
  n.decoder.gate = "feed_forward.gate_proj.weight";
  n.decoder.up = "feed_forward.up_proj.weight";
  n.decoder.down = "feed_forward.down_proj.weight";
  n.experts = {.scores = "feed_forward.router.weight",
               .correction = {},
               .gate = "feed_forward.experts.{}.gate_proj.weight",
               .up = "feed_forward.experts.{}.up_proj.weight",
               .down = "feed_forward.experts.{}.down_proj.weight",
               .gate_up = {},
               .shared_gate = "feed_forward.shared_expert.gate_proj.weight",
               .shared_up = "feed_forward.shared_expert.up_proj.weight",
               .shared_down = "feed_forward.shared_expert.down_proj.weight",
               .shared_scores = {}};
  if (stacked) {
    n.experts.gate_up = "feed_forward.experts.gate_up_proj";
    n.experts.down = "feed_forward.experts.down_proj";
  }
  return n;
}

MoeSpec mixture(const Llama4& m, const Names& names, const std::string& prefix) {
  MoeSpec moe = make_experts(m.experts, names.experts, prefix);
  moe.weighs_inputs = true;
  if (names.transposed)
    for (MlpSpec& expert : moe.experts)
      for (MatrixSpec* matrix : {&expert.gate_up, &expert.down}) matrix->parts.front().transposed = true;
  return moe;
}

Result<ModelSpec> build(Llama4 m, const Names& names) {
  m.experts.hidden = m.sizes.hidden;
  m.experts.shared_size = m.experts.size;
  m.experts.router.scoring = kernels::Scoring::kSigmoid;
  m.experts.router.renormalise = false;
  if (auto ok = check_experts(m.experts, m.sizes.layers); !ok) return std::unexpected(ok.error());
  // Norms come behind the rope; before it they give the same, as long as it does not change lengths.
  if (m.rope.attention_factor != 1 || m.rope.rotary_dim != m.sizes.head_dim)
    return fail(ErrorKind::kUnsupported,
                "a rope that scales queries and keys, or turns part of a head, is not supported for llama4", "rope");
  m.rope.interleaved = true;
  ModelSpec spec = build_decoder(m.sizes, m.traits, names.decoder, m.tied);
  spec.ropes.push_back(m.rope);
  for (int i = 0; i < m.sizes.layers; ++i) {
    const auto index = static_cast<size_t>(i);
    LayerSpec& layer = spec.layers[index];
    AttentionSpec& attention = layer.attention();
    if (m.with_rope[index] != 0) {
      attention.rope = 0;
      if (m.normed) attention.q_norm.size = attention.k_norm.size = m.sizes.head_dim;
    } else {
      attention.growth = m.growth;
    }
    if (m.chunked[index]) attention.chunk = m.chunk;
    if (m.sparse[index]) layer.mlp = mixture(m, names, fmt::format(fmt::runtime(names.decoder.layer), i));
  }
  return spec;
}

// A number counts as true unless it is 0: older configurations have one.
Result<bool> read_tuning(const HuggingFaceConfig& config) {
  const char* key = "attn_temperature_tuning";
  if (auto number = config.integer_or(key, 0, kMaxPositions, 0); number && config.has(key)) return *number != 0;
  return config.boolean_or(key, true);
}

Result<void> read_growth(const HuggingFaceConfig& config, QueryGrowth& growth) {
  std::optional<Error> error;
  bool on = true;
  take(read_tuning(config), on, error);
  take(config.integer_or("floor_scale", 1, kMaxPositions, kDefaultGrowth.step), growth.step, error);
  take(config.number_or("attn_scale", kDefaultGrowth.strength), growth.strength, error);
  if (error) return std::unexpected(*error);
  if (!(growth.strength >= 0 && growth.strength <= 1e3))
    return fail(ErrorKind::kUnsupported,
                fmt::format("attn_scale {} is not supported; it must be between 0 and 1000", growth.strength),
                "attn_scale");
  if (!on) growth = {};
  return {};
}

// Chunks are for layers with rope, unless layer_types says otherwise.
Result<void> read_chunks(const HuggingFaceConfig& config, Llama4& m) {
  auto chunked = layers_of_type(config, "layer_types", m.sizes.layers, "chunked_attention", "full_attention");
  if (!chunked) return std::unexpected(chunked.error());
  if (chunked->empty())
    for (int rope : m.with_rope) chunked->push_back(rope != 0);
  m.chunked = std::move(*chunked);
  const char* key = "attention_chunk_size";
  if (config.is_null(key)) {
    for (bool chunk : m.chunked)
      if (chunk) return fail(ErrorKind::kCorruptFile, "attention_chunk_size is null, but layers have chunks", key);
    return {};
  }
  auto size = config.integer_or(key, 1, kMaxPositions, kDefaultChunk);
  if (!size) return std::unexpected(size.error());
  m.chunk = *size;
  return {};
}

// moe_layers, else every interleave_moe_layer_step-th.
Result<std::vector<bool>> layers_with_experts(const HuggingFaceConfig& config, int layers) {
  auto step = config.integer_or("interleave_moe_layer_step", 1, kMaxLayers, 1);
  if (!step) return std::unexpected(step.error());
  if (!config.has("moe_layers")) return every_nth(*step, layers);
  auto listed = config.integers("moe_layers", 0, kMaxLayers);
  if (!listed) return std::unexpected(listed.error());
  std::vector<bool> sparse(static_cast<size_t>(layers));
  for (int layer : *listed)
    if (layer < layers) sparse[static_cast<size_t>(layer)] = true;
  return sparse;
}

Result<Llama4> read(const HuggingFaceConfig& config) {
  Llama4 m;
  std::optional<Error> error;
  if (auto silu = require_activation(config, "hidden_act", "silu"); !silu) return std::unexpected(silu.error());
  take(decoder_sizes(config), m.sizes, error);
  take(config.integer_or("intermediate_size_mlp", 1, kMaxWidth, 16384), m.sizes.intermediate, error);
  take(config.integer("intermediate_size", 1, kMaxWidth), m.experts.size, error);
  take(config.integer("num_local_experts", 1, kernels::kMostExperts), m.experts.router.experts, error);
  take(config.integer("num_experts_per_tok", 1, kernels::kMostChosen), m.experts.router.chosen, error);
  take(config.boolean_or("attention_bias", false), m.traits.qkv_bias, error);
  take(config.boolean_or("use_qk_norm", true), m.normed, error);
  take(config.boolean_or("tie_word_embeddings", false), m.tied, error);
  if (error) return std::unexpected(*error);
  m.traits.output_bias = m.traits.qkv_bias;
  take(hugging_face_rope(config, "", m.sizes.head_dim, kDefaultTheta), m.rope, error);
  take(layers_with_rope(config, m.sizes.layers, kDefaultInterval), m.with_rope, error);
  take(layers_with_experts(config, m.sizes.layers), m.sparse, error);
  if (error) return std::unexpected(*error);
  if (auto growth = read_growth(config, m.growth); !growth) return std::unexpected(growth.error());
  if (auto chunks = read_chunks(config, m); !chunks) return std::unexpected(chunks.error());
  return m;
}

Result<ModelSpec> make(const HuggingFaceConfig& config, const std::string& root, const weights::TensorSource* tensors) {
  auto m = read(config);
  if (!m) return std::unexpected(m.error());
  // Released files stack the experts of a layer, those that are quantised do not.
  bool separate = false;
  for (int i = 0; tensors != nullptr && i < m->sizes.layers; ++i) {
    const std::string first = fmt::format("{}layers.{}.feed_forward.experts.0.", root, i);
    for (const char* end : {"gate_proj.weight", "gate_proj.weight_packed"})
      separate |= tensors->find(first + end) != nullptr;
  }
  m->traits.root = root;
  const Names names = hugging_face(m->traits, !separate);
  return build(std::move(*m), names);
}

}  // namespace

Result<ModelSpec> llama4_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  return make(config, "model.", tensors);
}

Result<ModelSpec> llama4_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors) {
  const std::string root = find_root(tensors, {"model.language_model.", "language_model.model."});
  return make_text_model(config, {kDefaults, kOfImages},
                         [&](const HuggingFaceConfig& text) { return make(text, root, tensors); });
}

Result<ModelSpec> llama4_from_gguf(const GgufConfig& config) {
  Llama4 m;
  std::optional<Error> error;
  int step = 1, window = kDefaultChunk;
  take(decoder_sizes(config), m.sizes, error);
  read_experts(config, m.experts, error);
  take(config.integer("interleave_moe_layer_step", 1, kMaxLayers), step, error);
  take(config.integer_or("attention.sliding_window", 0, kMaxPositions, kDefaultChunk), window, error);
  if (error) return std::unexpected(*error);
  if (window != kDefaultChunk)
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("attention.sliding_window {} is not supported for llama4; it must be {}", window, kDefaultChunk),
        "attention.sliding_window");
  auto rope = gguf_rope(config, m.sizes.head_dim);
  if (!rope) return std::unexpected(rope.error());
  m.rope = std::move(*rope);
  m.tied = config.file().find("output.weight") == nullptr;
  m.normed = m.experts.router.experts != kExpertsWithoutNorm;
  m.sparse = every_nth(step, m.sizes.layers);
  for (bool without : every_nth(kDefaultInterval, m.sizes.layers)) {
    m.with_rope.push_back(without ? 0 : 1);
    m.chunked.push_back(!without);
  }
  const Names names{gguf_names(m.traits), gguf_expert_names()};
  return build(std::move(m), names);
}

}  // namespace quire::model
