// A Model is a ModelSpec with its weights, packed for the kernels: immutable, shared by everything that runs it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/buffer.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "kernels/pack.h"
#include "model/spec.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "weights/tensor_source.h"

namespace quire::model {

// A MatrixSpec packed: neighbouring parts of one layout share a matrix, others have their own.
struct Linear {
  struct Part {
    kernels::PackedMatrix matrix;
    int first_row = 0;  // of the outputs that this matrix makes
  };
  std::vector<Part> parts;
  std::vector<float> bias;  // of all rows; empty if absent
  int rows = 0;
  int cols = 0;
};

struct AttentionWeights {
  std::vector<float> q_norm, k_norm, sinks;  // empty if absent
  Linear qkv, output;
};

struct GatedDeltaWeights {
  std::vector<float> conv, rate, dt_bias, norm;
  Linear input, z, a, output;  // z and a: empty without narrow gates
};

struct PooledIndexWeights {
  std::vector<float> norm_weight, norm_bias;
  std::vector<float> position_bias;  // empty without a ring
};

struct LatentWeights {
  std::vector<float> query_norm, latent_norm;
  kernels::Expansion expansion;  // bf16 but in the profile kF32
  Linear input, query, output;   // query: empty without narrow queries
  std::optional<PooledIndexWeights> indexer;
};

struct MlpWeights {
  Linear gate_up, down;
};

// The experts' matrices have one ActivationKind in each place, and all `down` the same slices.
struct MoeWeights {
  Linear scores;
  std::vector<float> correction;
  std::vector<MlpWeights> experts;
  std::optional<MlpWeights> shared;
};

struct StreamsWeights {
  Linear scores;
  std::vector<float> scale, bias;
};

struct LayerWeights {
  std::vector<float> attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;  // empty if absent
  std::variant<AttentionWeights, GatedDeltaWeights, LatentWeights> mixer;           // as in the spec
  std::variant<MlpWeights, MoeWeights> mlp;                                         // as in the spec
  std::optional<StreamsWeights> attention_streams, mlp_streams;                     // as in the spec

  const MlpWeights& dense() const { return std::get<MlpWeights>(mlp); }
};

struct Model {
  ModelSpec spec;
  Profile profile = Profile::kF32;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  Linear head;
  std::optional<kernels::PackedMatrix> embedding;  // absent if the head is tied: its rows are gathered then
  size_t weight_bytes = 0;
  Sha256Digest digest = {};  // of all tensors that the spec names: names, formats, shapes and data

  const kernels::PackedMatrix& embedding_matrix() const { return embedding ? *embedding : head.parts.front().matrix; }
};

// The profile a checkpoint runs in unless told otherwise: kQ8 if any of the spec's matrices is quantised, else kBF16.
Profile default_profile(const ModelSpec& spec, const weights::TensorSource& tensors);

// Bytes.
struct WeightMemory {
  size_t all = 0;
  size_t experts = 0;  // the part that is matrices of experts, of which a row reads only those that it chooses
};

// What the spec's tensors will take, but for what padding is saved where matrices are stacked. Missing ones take none.
WeightMemory memory_of(const ModelSpec& spec, const weights::TensorSource& tensors, Profile profile);

// kUnsupported, naming dtype, if the profile wants quantised weights and the spec's are floats.
Result<void> check_profile(const ModelSpec& spec, const weights::TensorSource& tensors, Profile profile);

struct LoadContext {
  Allocator& allocator;
  ThreadPool& pool;
  Allocator* experts = nullptr;               // of experts' matrices; null: `allocator`
  std::function<void(double)> progress = {};  // from 0 to 1; may be empty
};

// Reads, checks and packs every tensor of the spec, after check_names() (tensor_names.h). kCorruptFile or kUnsupported
// name the tensor at fault: of another shape than the configuration implies, or in a format that the profile cannot
// use. kUnsupported names dtype where kQ8 finds nothing quantised.
Result<Model> load_weights(ModelSpec spec, const weights::TensorSource& tensors, Profile profile, LoadContext context);

}  // namespace quire::model
