// What the dense decoders (Llama, Qwen3, Gemma 3) have in common: the sizes that their configurations state, and the
// names under which checkpoints keep the tensors of a layer.
#pragma once

#include <string>
#include <vector>

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

Result<DecoderSizes> decoder_sizes(const HuggingFaceConfig& config);
Result<DecoderSizes> decoder_sizes(const GgufConfig& config);

// How an architecture differs from the plain decoder. Norm names are chosen per layer by the architecture itself where
// it has more than the two usual ones.
struct DecoderTraits {
  std::string architecture;
  Activation activation = Activation::kSilu;
  bool qk_norm = false;
  bool post_norms = false;  // norms behind attention and MLP, before the residual is added
  bool scale_embeddings = false;
  float norm_offset = 0;        // added to every norm weight
  float attention_scale = 0;    // 0: 1 / sqrt(head_dim)
  bool interleaved_qk = false;  // q and k rows need MatrixPart::interleaved_head_dim
};

// Names of a layer's tensors in one checkpoint format.
struct DecoderNames {
  std::string embedding, final_norm, head;
  std::string layer;  // prefix with {} for the layer's number
  std::string attention_norm, q, k, v, q_norm, k_norm, o, attention_post_norm;
  std::string mlp_norm, gate, up, down, mlp_post_norm;
};

DecoderNames hugging_face_names(const DecoderTraits& traits);
DecoderNames gguf_names();

// All layers alike, with full attention and no rope; the architecture sets `window` and `rope` per layer afterwards.
ModelSpec build_decoder(const DecoderSizes& sizes, const DecoderTraits& traits, const DecoderNames& names,
                        bool tied_head);

// kUnsupported, naming the key, if the configuration asks for another activation than `only`.
Result<void> require_activation(const HuggingFaceConfig& config, const char* key, const std::string& only);

// Which layers attend to a window, by layer_types; empty where the configuration does not have it. kUnsupported for a
// type of any other kind.
Result<std::vector<bool>> windowed_layers(const HuggingFaceConfig& config, int layers);

// The rope of a Hugging Face configuration, in the new spelling (rope_parameters, under `section` if it is per layer
// type) or the old one (rope_theta, rope_scaling).
Result<kernels::RopeParameters> hugging_face_rope(const HuggingFaceConfig& config, const std::string& section,
                                                  int head_dim, double default_theta);
// The rope of GGUF metadata, with the factors of the tensor rope_freqs.weight where there is one.
Result<kernels::RopeParameters> gguf_rope(const GgufConfig& config, int head_dim, double default_theta);

}  // namespace quire::model
