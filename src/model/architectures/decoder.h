// What dense decoders (Llama, Qwen3, Gemma 3 and their like) have in common: the sizes that their configurations state,
// and the names under which checkpoints keep the tensors of a layer.
#pragma once

#include <string>
#include <vector>

#include "model/architectures/rope.h"
#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

struct DecoderSizes {
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  int max_positions = 0;
  float norm_epsilon = 0;
};

// Without `has_dense` (all layers have experts) nothing need be said about the size of a dense MLP.
Result<DecoderSizes> decoder_sizes(const HuggingFaceConfig& config, bool has_dense = true);
Result<DecoderSizes> decoder_sizes(const GgufConfig& config, bool has_dense = true);

// The layers of the model itself: block_count also counts those that predict tokens further ahead.
Result<int> gguf_layers(const GgufConfig& config);

// kCorruptFile, naming the key, unless it lies between 0 and 1.
Result<void> check_norm_epsilon(const std::string& key, float epsilon);

// How an architecture differs from the plain decoder. Norm names are chosen per layer by the architecture itself where
// it has more than the two usual ones.
struct DecoderTraits {
  std::string architecture;
  Activation activation = Activation::kSilu;
  bool qk_norm = false;
  bool post_norms = false;  // norms behind attention and MLP, before the residual is added
  bool scale_embeddings = false;
  float norm_offset = 0;         // added to every norm weight
  float attention_scale = 0;     // 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;  // 0: none
  float logit_soft_cap = 0;      // 0: none
  bool qkv_bias = false;         // biases are called as weights are, but for the end
  bool output_bias = false;
  bool mlp_bias = false;
  bool sinks = false;
  bool fused = false;           // q, k and v are one tensor, and gate and up
  bool tied_head = false;       // where the configuration does not say
  bool interleaved_qk = false;  // q and k rows need MatrixPart::interleaved_head_dim
  std::string root = "model.";  // before all names of Hugging Face but the head's; composite models have another
};

// Names of a layer's tensors in one checkpoint format.
struct DecoderNames {
  std::string embedding, final_norm, head;
  std::string layer;  // prefix with {} for the layer's number
  std::string attention_norm, q, k, v, q_norm, k_norm, o, sinks, attention_post_norm;
  std::string mlp_norm, gate, up, down, mlp_post_norm;
  std::string qkv, gate_up;  // instead of those where they are fused
};

DecoderNames hugging_face_names(const DecoderTraits& traits);
DecoderNames gguf_names(const DecoderTraits& traits);

// Reads attention_bias (q, k, v and output) and mlp_bias, false where the configuration does not have them.
Result<void> read_biases(const HuggingFaceConfig& config, DecoderTraits& traits);

// All layers alike, with full attention and no rope; the architecture sets `window` and `rope` per layer afterwards.
ModelSpec build_decoder(const DecoderSizes& sizes, const DecoderTraits& traits, const DecoderNames& names,
                        bool tied_head);

// A decoder with SiLU whose layers attend to everything with the one rope that the configuration asks for.
Result<ModelSpec> plain_decoder(const HuggingFaceConfig& config, const DecoderTraits& traits, double default_theta);
Result<ModelSpec> plain_decoder(const GgufConfig& config, const DecoderTraits& traits);

// kUnsupported, naming the key, if the configuration asks for another activation than `only`.
Result<void> require_activation(const HuggingFaceConfig& config, const char* key, const std::string& only);

// Which layers are of this type, by the list under `key`; empty where the configuration does not have it. kUnsupported
// for a type that is neither of the two.
Result<std::vector<bool>> layers_of_type(const HuggingFaceConfig& config, const std::string& key, int layers,
                                         const std::string& type, const std::string& other);
// Layers n - 1, 2 n - 1, ...
std::vector<bool> every_nth(int n, int layers);

// Which layers have a rope: by no_rope_layers, a list of 1 and 0, else all but every no_rope_layer_interval-th.
Result<std::vector<int>> layers_with_rope(const HuggingFaceConfig& config, int layers, int default_interval);

// Which layers attend to a window, by layer_types; empty where the configuration does not have it.
Result<std::vector<bool>> windowed_layers(const HuggingFaceConfig& config, int layers);

// The window that use_sliding_window turns on, 0: none. `default_window` is what holds without sliding_window; null is
// none.
Result<int> window_in_use(const HuggingFaceConfig& config, int default_window);
// That of every layer, 0 for none: in those that layer_types says, else in the `chosen` ones. kUnsupported if
// layer_types asks for windows and there are none.
Result<std::vector<int>> chosen_windows(const HuggingFaceConfig& config, std::vector<bool> chosen, int default_window);
// Of Qwen2 and Qwen3: from max_window_layers on, in sizes that the reference has for what is not said.
Result<std::vector<int>> later_windows(const HuggingFaceConfig& config, int layers);

// sliding_window, or 0 if it is null. Absent it is an error: references have different defaults.
Result<int> window_or_null(const HuggingFaceConfig& config);
// The same window for every layer, or each its own; 0: none.
void set_windows(ModelSpec& spec, int window);
void set_windows(ModelSpec& spec, const std::vector<int>& windows);

}  // namespace quire::model
