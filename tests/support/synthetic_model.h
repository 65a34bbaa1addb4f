// A small model of any mix of layers, made in memory: a ModelSpec, and random weights that depend on the seed alone.
//
// Weights are bf16, so that every profile of floats runs the same numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"
#include "weights/tensor_source.h"

namespace quire::test {

// One layer: attention, the gated delta rule, or latent attention, with an indexer or without. Index keys of single
// tokens have the layer's rope.
struct SyntheticLayer {
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int window = 0;
  int chunk = 0;
  int donor = -1;        // index of the layer whose cache it reads
  bool gated = false;    // whether attention's heads have output gates, beside them in one tensor
  int state_heads = 0;   // > 0: gated delta with so many heads of head_dim keys and 2 * head_dim values
  int key_heads = 0;     // > 0: which share so many key heads, whose rows lie together in one tensor
  bool tiled = false;    // whether heads that share a key head lie apart
  int gate_rank = 0;     // > 0: they decay by channel; all gates come through narrow layers, and one is a sigmoid
  int rank = 0;          // > 0: latent attention of q_heads heads of head_dim, and half of it turned
  bool narrow = true;    // whether its queries come through a narrow layer
  bool turned = true;    // whether it has dimensions with rope
  int pool = 0;          // > 0: and it reads the tokens of the best pools of so many tokens
  int top_k = 0;         // tokens that it reads then
  bool follows = false;  // whether it reads what the last layer with pools reads
  int streams = 0;       // > 0, of the first layer: the model has so many residual streams
};

class SyntheticModel : public weights::TensorSource {
 public:
  SyntheticModel(std::span<const SyntheticLayer> layers, unsigned seed);

  const model::ModelSpec& spec() const { return spec_; }
  // A tensor widened.
  std::vector<double> values(std::string_view name) const;

  const weights::Tensor* find(std::string_view name) const override;
  std::span<const weights::Tensor> tensors() const override { return tensors_; }
  Result<const weights::Tensor*> require(std::string_view name) const override;

 private:
  void tensor(const std::string& name, std::vector<int64_t> shape, float mean, float deviation);
  model::MatrixPart part(const std::string& name, int rows, int cols);
  // Parts of one tensor: `counts` rows of each in every one of its `groups` groups.
  std::vector<model::MatrixPart> grouped(const std::string& name, int groups, std::span<const int> counts, int cols);
  model::NormSpec norm(const std::string& name, int size);
  model::AttentionSpec attention(int index, const SyntheticLayer& layer);
  model::GatedDeltaSpec gated_delta(int index, const SyntheticLayer& layer);
  model::StreamsSpec streams(const std::string& prefix);
  model::LatentSpec latent(int index, const SyntheticLayer& layer);
  void indexer(const std::string& prefix, const SyntheticLayer& layer, model::LatentSpec& l);
  int rope_of(int dim);  // one for each size

  std::mt19937 random_;
  model::ModelSpec spec_;
  std::deque<std::vector<uint16_t>> data_;
  std::vector<weights::Tensor> tensors_;
};

// What the model's logits are at every position of `tokens`: dense attention over the whole sequence in double, without
// a cache. [tokens][vocab_size]
std::vector<std::vector<double>> dense_logits(const SyntheticModel& model, std::span<const TokenId> tokens);

}  // namespace quire::test
