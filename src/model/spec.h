// A ModelSpec is a model as data: sizes, blocks in order, and the names of the tensors that fill them.
//
// An architecture file (architectures/NAME.cc) makes one from a checkpoint's configuration, in Hugging Face format or
// GGUF; everything behind it (weights, cache plan, forward pass) reads only this value. Nothing here has touched a
// tensor yet: shapes are what the configuration implies, and load_weights() checks them against the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/gated_delta.h"
#include "kernels/latent_attention.h"
#include "kernels/pooled_index.h"
#include "kernels/residual_streams.h"
#include "kernels/rope.h"
#include "kernels/routing.h"
#include "quire/error.h"
#include "quire/request.h"

namespace quire::model {

// Rows of a tensor that holds several things for each head: of every `size` rows the `count` from `first` on.
struct RowGroups {
  int size = 0;
  int first = 0;
  int count = 0;
};

// The rows of one file tensor inside a matrix: all of them, [rows, cols], or some of each group.
struct MatrixPart {
  std::string tensor;
  int rows = 0;
  // > 0: rows come in heads of this size whose rotary pairs are interleaved (2i, 2i+1); loading puts them into halves
  // (i, i + d/2), the only form that the kernels know.
  int interleaved_head_dim = 0;
  std::optional<RowGroups> groups = {};  // rows is a multiple of groups->count
  std::string bias = {};                 // a tensor beside the first, one number for each of its rows; empty: none
  // > 0: the tensor is a stack of so many matrices [stack, rows, cols], and this is number `entry` of it. So is a bias:
  // [stack, rows].
  int stack = 0;
  int entry = 0;
  bool transposed = false;  // the tensor, or each of the stack, is [cols, rows]
  bool in_fp32 = false;     // whether weights and inputs are fp32 whatever the profile

  int tensor_rows() const { return groups ? rows / groups->count * groups->size : rows; }
  bool has_bias() const { return !bias.empty(); }
};

// One or more file tensors over the same input, stacked along the output.
struct MatrixSpec {
  std::vector<MatrixPart> parts;
  int cols = 0;
  // Rule 11 of docs/determinism.md: 0 if K is never cut; else the inputs that stay together in a slice (those of a
  // kv-head group, or 1). The number of slices follows from this and the file's format.
  int slice_unit = 0;
  // Whether quantised tensors are multiplied in their own integers whatever the profile.
  bool keeps_integers = false;

  int rows() const;
};

// An RMSNorm of `size` values, 0: none. `offset` is added to each weight (1 where the file stores w of 1 + w). Without
// a tensor it has no weights: all are 1.
struct NormSpec {
  std::string tensor;
  int size = 0;
  float offset = 0;
  bool present() const { return size > 0; }
  bool has_weights() const { return !tensor.empty(); }
};

// What queries are multiplied with by their position: 1 + strength * ln(1 + floor((position + 1) / step)); step 0:
// nothing.
struct QueryGrowth {
  int step = 0;
  double strength = 0;
};

struct AttentionSpec {
  std::string name;  // of the layer in the cache plan; attention groups are found by it
  // The earlier layer whose keys and values this one reads instead of keeping its own; empty: none. They must agree in
  // kv heads, head size and mask.
  std::string donor;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0;     // of q . k
  float soft_cap = 0;  // c > 0: what q . k gives becomes c * tanh(it / c)
  std::string sinks;   // a tensor of [q_heads], one more logit in each softmax, for no value; empty: none
  int window = 0;      // keys in (pos - window, pos]; 0: all
  int chunk = 0;       // keys of the same floor(pos / chunk); 0: all
  int rope = -1;       // index into ModelSpec::ropes; -1: none
  QueryGrowth growth = {};
  bool gated = false;  // whether the output of each q head is multiplied by the sigmoid of a gate
  MatrixSpec qkv;      // rows: q heads, k heads, v heads, gates of the q heads; with a donor no k and v
  NormSpec q_norm;     // per head, before rope; absent in most
  NormSpec k_norm;
  MatrixSpec output;

  bool keeps_own() const { return donor.empty(); }
  int q_rows() const { return q_heads * head_dim; }
  int kv_rows() const { return keeps_own() ? kv_heads * head_dim : 0; }
  int input_rows() const { return q_rows() * (gated ? 2 : 1) + 2 * kv_rows(); }
};

// How a file holds the rate at which a state decays.
enum class DecayForm : uint8_t { kLogarithm, kNegated };

// The convolution's weights for some channels: [channels, conv_width], or [channels, 1, conv_width].
struct ConvolutionPart {
  std::string tensor;
  int channels = 0;
};

// The gated delta rule with a convolution before and a gated norm behind (kernels/gated_delta.h), z and a through
// narrow layers of their own or not:
//   output(norm(rule(input(x))) * silu(z)), or * sigmoid(z).
struct GatedDeltaSpec {
  std::string name;  // of the layer in the cache plan
  kernels::GatedDeltaShape shape;
  int gate_rank = 0;  // of both narrow layers; 0: there are none
  // Rows: q heads, k heads, v heads, z (heads of value_dim), a (shape.decays()), b (heads); gate_rank for z and for a.
  MatrixSpec input;
  MatrixSpec z, a;                    // over gate_rank; empty without it
  std::vector<ConvolutionPart> conv;  // of q, k and v, in this order
  std::string decay;                  // [heads], the rate
  DecayForm decay_form = DecayForm::kLogarithm;
  std::string dt_bias;  // [shape.decays()]
  NormSpec norm;        // of value_dim
  bool sigmoid_gate = false;
  MatrixSpec output;

  bool narrows_gates() const { return gate_rank > 0; }
  int z_width() const { return narrows_gates() ? gate_rank : shape.value_rows(); }  // in the rows of `input`
  int a_width() const { return narrows_gates() ? gate_rank : shape.decays(); }
  int input_rows() const { return shape.channels() + z_width() + a_width() + shape.heads; }
};

// Chooses the tokens that a latent layer reads (kernels/pooled_index.h). It keeps pooled keys, and the tokens of the
// open pool in a ring: layers of their own in the cache plan. With pools of one token there is no ring.
struct PooledIndexSpec {
  std::string keys_name, ring_name;    // in the cache plan; ring_name is empty without a ring
  kernels::PooledIndexShape shape;     // dtype aside
  int rope = -1;                       // of the first dimensions of keys and queries; as LatentSpec::rope
  std::string norm_weight, norm_bias;  // [dim], of the keys' LayerNorm
  float norm_epsilon = 0;
  std::string position_bias;  // [pool, dim]; empty without a ring

  int gate_rows() const { return shape.keeps_ring() ? shape.dim : 0; }
  int input_rows() const { return shape.dim + gate_rows() + shape.heads; }
  int query_rows() const { return shape.heads * shape.dim; }
};

// The maps from latents to keys without rope and to values: one tensor [heads * (nope_dim + value_dim), rank], or two,
// of which the keys' one is transposed: [heads, rank, nope_dim] and [heads, value_dim, rank].
struct ExpansionSpec {
  std::string both;
  std::string keys, values;  // where `both` is empty

  std::vector<const std::string*> tensors() const {
    return both.empty() ? std::vector{&keys, &values} : std::vector{&both};
  }
};

// Multi-head latent attention (kernels/latent_attention.h), its queries through a narrow layer of their own or not:
//   output(attention(query(norm(narrow)), latent)), narrow and latent rows of input(x), or
//   output(attention(queries, latent)), queries and latent rows of input(x).
struct LatentSpec {
  std::string name;            // of the layer in the cache plan
  kernels::LatentShape shape;  // dtype aside
  int query_rank = 0;          // 0: no narrow layer
  float scale = 0;             // of q . k
  int rope = -1;               // index into ModelSpec::ropes; -1: none
  // Rows: query_rank, or without it heads of nope and rope; rank; rope_dim; with an indexer its keys (dim), gates
  // (gate_rows()), weights (heads).
  MatrixSpec input;
  NormSpec query_norm;     // of query_rank; absent without it
  NormSpec latent_norm;    // of rank
  float norm_epsilon = 0;  // of both
  // Over query_rank; rows: heads of nope and rope; with an indexer its heads of dim. Empty without query_rank.
  MatrixSpec query;
  ExpansionSpec expansion;
  MatrixSpec output;
  std::optional<PooledIndexSpec> indexer;
  bool reads_last_choice = false;  // whether it reads what the last indexer before it chose

  bool narrows_queries() const { return query_rank > 0; }
  int query_rows() const { return shape.heads * shape.query_dim(); }
  int latent_offset() const { return narrows_queries() ? query_rank : query_rows(); }  // in the rows of `input`
  int value_rows() const { return shape.heads * shape.value_dim; }
};

// How a layer mixes tokens.
using Mixer = std::variant<AttentionSpec, GatedDeltaSpec, LatentSpec>;

// The layer's name in the cache plan, the first one if it has several.
const std::string& name_of(const Mixer& mixer);

enum class Activation : uint8_t {
  kSilu,
  kGeluTanh,
  kClampedSwiglu,  // kernels::ClampedSwigluArgs, with the next three
};

struct MlpSpec {
  int size = 0;
  Activation activation = Activation::kSilu;
  float alpha = 0, limit = 0, up_offset = 0;
  MatrixSpec gate_up;  // rows: gate, up
  MatrixSpec down;
};

// A mixture of experts: those that the router chooses for a row, by their weights, and one that all rows share:
//   sum of weight_e expert_e(x) + shared(x), or with `shared_is_gated` + sigmoid(last of scores(x)) shared(x);
//   with `weighs_inputs` sum of expert_e(weight_e x).
struct MoeSpec {
  kernels::RouterShape router;
  MatrixSpec scores;             // in fp32; rows: experts, and the shared one's gate if it has one
  std::string correction;        // [experts], added to scores for the choice; empty: none
  std::vector<MlpSpec> experts;  // alike in sizes and activation
  std::optional<MlpSpec> shared;
  bool shared_is_gated = false;
  bool weighs_inputs = false;
};

using FeedForward = std::variant<MlpSpec, MoeSpec>;

// Where a model has several residual streams: how those of a token become a sublayer's input, and take its output
// (kernels/residual_streams.h).
struct StreamsSpec {
  MatrixSpec scores;  // in fp32, over all streams of a token, normed together without weights
  std::string scale;  // [3]
  std::string bias;   // [scores]
};

// x += post(mixer(norm(x))); x += post(mlp(norm(x))). The post norms are absent in most. With several residual streams
// x is made of them, and they take mixer(norm(x)) and mlp(norm(x)) instead.
struct LayerSpec {
  NormSpec attention_norm;
  Mixer mixer;
  NormSpec attention_post_norm;
  NormSpec mlp_norm;
  FeedForward mlp;
  NormSpec mlp_post_norm;
  std::optional<StreamsSpec> attention_streams, mlp_streams;

  // All that are multiplied with in the profile's numbers, but for parts in fp32, in the order in which they are read.
  std::vector<const MatrixSpec*> matrices() const;

  // For layers that are known to attend.
  AttentionSpec& attention() { return std::get<AttentionSpec>(mixer); }
  const AttentionSpec& attention() const { return std::get<AttentionSpec>(mixer); }
  // For layers that are known to be dense.
  MlpSpec& dense() { return std::get<MlpSpec>(mlp); }
  const MlpSpec& dense() const { return std::get<MlpSpec>(mlp); }
};

struct ModelSpec {
  std::string architecture;  // as the checkpoint names it
  int hidden_size = 0;
  int vocab_size = 0;
  int64_t max_positions = 0;
  float norm_epsilon = 0;
  bool scale_embeddings = false;  // by sqrt(hidden_size)
  std::vector<kernels::RopeParameters> ropes;
  // Of residual streams, which begin as the embedding, and whose mean comes before the final norm; {}: there is one.
  std::optional<kernels::StreamShape> streams;
  std::vector<LayerSpec> layers;
  float logit_soft_cap = 0;  // c > 0: a logit x becomes c * tanh(x / c)
  int unread_layers = 0;     // that the checkpoint may hold behind these: they predict tokens further ahead
  NormSpec final_norm;
  std::string embedding;  // [vocab_size, hidden_size]
  MatrixSpec head;        // names the embedding's tensor where the head is tied
  std::vector<TokenId> end_tokens;

  bool tied_head() const { return head.parts.front().tensor == embedding; }
};

// A flag says how long the longest request may be: ropes that depend on this are chosen by it, instead of by the
// model's own length. Models with a dynamic rope become as long as the flag says, up to `factor` times their own
// length.
void set_longest(ModelSpec& spec, int64_t max_model_len);

// What no tensor's shape tells: layers have names of their own, masks and shapes are possible, and every donor is an
// earlier layer that keeps what the reader expects. kUnsupported, naming the layer.
Result<void> validate(const ModelSpec& spec);

}  // namespace quire::model
