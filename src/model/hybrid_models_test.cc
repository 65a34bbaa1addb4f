// Configurations and tensors of models with recurrent layers or latent attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/architectures/architectures.h"
#include "model/load.h"
#include "model/tensor_names.h"
#include "model/test_fixtures.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

// A checkpoint of which one tensor holds other numbers.
class Altered : public weights::TensorSource {
 public:
  Altered(const weights::TensorSource& from, std::string_view name, float value) {
    list_.assign(from.tensors().begin(), from.tensors().end());
    for (weights::Tensor& tensor : list_) {
      if (tensor.name != name) continue;
      values_.assign(static_cast<size_t>(tensor.elements()), value);
      tensor.format = weights::WeightFormat::kF32;
      tensor.data = std::as_bytes(std::span(values_));
    }
  }
  const weights::Tensor* find(std::string_view name) const override {
    const auto it = std::ranges::find(list_, name, &weights::Tensor::name);
    return it == list_.end() ? nullptr : &*it;
  }
  std::span<const weights::Tensor> tensors() const override { return list_; }
  Result<const weights::Tensor*> require(std::string_view name) const override {
    if (const auto* tensor = find(name)) return tensor;
    return fail(ErrorKind::kNotFound, "no such tensor", std::string(name));
  }

 private:
  std::vector<weights::Tensor> list_;
  std::vector<float> values_;
};

TEST(Qwen35, MakesWhatItsConfigurationSays) {
  const auto spec = changed_fixture("qwen3_5", Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  for (const size_t layer : {0U, 1U, 2U, 4U}) {
    const auto& g = std::get<GatedDeltaSpec>(spec->layers[layer].mixer);
    EXPECT_EQ(g.shape.heads, 4);
    EXPECT_EQ(g.shape.key_heads, 2);
    EXPECT_FALSE(g.shape.tiled);
    EXPECT_EQ(g.norm.offset, 0);
    EXPECT_EQ(spec->layers[layer].attention_norm.offset, 1);
  }
  const AttentionSpec& a = spec->layers[3].attention();
  EXPECT_TRUE(a.gated);
  EXPECT_EQ(a.k_norm.offset, 1);
  EXPECT_EQ(spec->ropes.at(static_cast<size_t>(a.rope)).rotary_dim, 4);
  EXPECT_TRUE(spec->tied_head());
}

TEST(Qwen35, OlderConfigurationsNameAnInterval) {
  const Json old = {{"layer_types", nullptr}, {"rope_parameters", nullptr}, {"rope_theta", 1e7}};
  const auto spec = changed_fixture("qwen3_5", old);
  ASSERT_TRUE(spec) << spec.error().message;
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(std::holds_alternative<AttentionSpec>(spec->layers[i].mixer), i == 3) << i;
  EXPECT_EQ(spec->ropes[0].rotary_dim, 4);  // a quarter unless said otherwise
  Json three = old, ungated = {{"attn_output_gate", false}};
  three["full_attention_interval"] = 3;
  EXPECT_TRUE(std::holds_alternative<AttentionSpec>(changed_fixture("qwen3_5", three)->layers[2].mixer));
  EXPECT_FALSE(changed_fixture("qwen3_5", ungated)->layers[3].attention().gated);
}

TEST(Qwen35, RefusesWhatItDoesNotCompute) {
  const std::pair<Json, const char*> cases[] = {
      {{{"attention_bias", true}}, "attention_bias"},
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"layer_types", {"linear_attention"}}}, "layer_types"},
      {{{"layer_types", {"a", "a", "a", "a", "a"}}}, "layer_types"},
      {{{"linear_num_key_heads", 3}}, "key heads"},
      {{{"linear_num_key_heads", 0}}, "linear_num_key_heads"},
      {{{"linear_num_value_heads", nullptr}}, "linear_num_value_heads"},
      {{{"linear_key_head_dim", 512}}, "key dimension"},
      {{{"linear_value_head_dim", "8"}}, "linear_value_head_dim"},
      {{{"linear_conv_kernel_dim", 9}}, "convolution"},
      {{{"rope_parameters", {{"partial_rotary_factor", 2}}}}, "rope_parameters/partial_rotary_factor"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.01}}}}, "rope_parameters/partial_rotary_factor"}};
  for (const auto& [changes, param] : cases) expect_refused("qwen3_5", changes, param);
}

TEST(Qwen35, NamesRatesThatAreNone) {
  const weights::Checkpoint file = open_fixture("qwen3_5"), gguf = open_fixture("gguf/qwen3_5.gguf");
  const std::pair<const weights::Checkpoint*, std::string> cases[] = {{&file, "model.layers.2.linear_attn.A_log"},
                                                                      {&gguf, "blk.2.ssm_a"}};
  for (const auto& [checkpoint, name] : cases)
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), 1e10F}) {
      Allocator allocator;
      ThreadPool pool(1);
      const Altered tensors(*checkpoint->tensors, name, value);
      const auto model = load_weights(*make_spec(*checkpoint), tensors, Profile::kF32, {allocator, pool});
      ASSERT_FALSE(model) << name << value;
      EXPECT_EQ(model.error().kind, ErrorKind::kCorruptFile);
      EXPECT_EQ(model.error().param, name);
    }
}

Json multimodal(const Json& text) {
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"vision_config", {{"depth", 27}}},
          {"image_token_id", 248056},
          {"video_token_id", 248057},
          {"vision_start_token_id", 248053},
          {"vision_end_token_id", 248054},
          {"tie_word_embeddings", false},
          {"text_config", text}};
}

Result<ModelSpec> spec_of(const Json& config) {
  weights::Checkpoint checkpoint;
  checkpoint.config_json = config.dump();
  return make_spec(checkpoint);
}

// As the reference's Qwen3_5TextConfig has them.
TEST(Qwen35, IsFoundInAMultimodalConfiguration) {
  const Json text = {{"eos_token_id", 248044}, {"mtp_num_hidden_layers", 1}, {"attn_output_gate", true}};
  auto spec = spec_of(multimodal(text));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 32U);
  EXPECT_EQ(spec->hidden_size, 4096);
  EXPECT_EQ(spec->vocab_size, 248320);
  EXPECT_EQ(spec->layers[3].attention().q_heads, 16);
  EXPECT_EQ(spec->layers[3].attention().kv_heads, 4);
  EXPECT_EQ(std::get<GatedDeltaSpec>(spec->layers[2].mixer).shape.heads, 32);
  EXPECT_EQ(spec->layers[2].dense().size, 12288);
  EXPECT_EQ(spec->ropes[0].theta, 10000);
  EXPECT_EQ(spec->ropes[0].rotary_dim, 64);
  EXPECT_EQ(spec->embedding, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(spec->head.parts[0].tensor, "lm_head.weight");
  EXPECT_EQ(spec->end_tokens, std::vector<TokenId>{248044});

  Json wrong = text;
  wrong["tie_word_embeddings"] = true;
  EXPECT_EQ(spec_of(multimodal(wrong)).error().param, "tie_word_embeddings");
  wrong = text;
  wrong["logit_scale"] = 2;
  EXPECT_EQ(spec_of(multimodal(wrong)).error().param, "logit_scale");
  EXPECT_EQ(spec_of(multimodal(3)).error().param, "text_config");
}

TEST(Qwen35Moe, HasExpertsInEveryLayer) {
  Json config = multimodal({{"num_hidden_layers", 8}});
  config["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  const auto spec = spec_of(config);
  ASSERT_TRUE(spec) << spec.error().message;
  for (const LayerSpec& layer : spec->layers) {
    const auto& moe = std::get<MoeSpec>(layer.mlp);
    EXPECT_EQ(moe.router.experts, 256);
    EXPECT_EQ(moe.router.chosen, 8);
    EXPECT_TRUE(moe.router.renormalise);
    EXPECT_EQ(moe.shared->size, 512);
    EXPECT_TRUE(moe.shared_is_gated);
  }
  config["text_config"]["norm_topk_prob"] = false;
  EXPECT_EQ(spec_of(config).error().param, "norm_topk_prob");
  config["text_config"].erase("norm_topk_prob");
  config["text_config"]["mlp_only_layers"] = {1};  // the reference would pass over it
  EXPECT_EQ(spec_of(config).error().param, "mlp_only_layers");
}

TEST(Qwen3Next, TakesRowsThatLieTogetherForEachKeyHead) {
  const auto spec = changed_fixture("qwen3_next", Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  const auto& g = std::get<GatedDeltaSpec>(spec->layers[0].mixer);
  ASSERT_EQ(g.input.parts.size(), 6U);
  const int firsts[] = {0, 8, 16, 32, 2, 0};  // q, k, v, z; a, b: b comes first in the file
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(g.input.parts[i].groups->first, firsts[i]) << i;
    EXPECT_EQ(g.input.parts[i].tensor_rows(), i < 4 ? 96 : 8) << i;
  }
  const auto& moe = std::get<MoeSpec>(spec->layers[0].mlp);
  EXPECT_EQ(moe.experts.size(), 4U);
  EXPECT_TRUE(moe.shared && moe.shared_is_gated);
  EXPECT_EQ(moe.scores.rows(), 5);
}

TEST(Qwen3Next, SomeLayersAreDense) {
  const auto dense = [](const Json& changes) {
    std::vector<bool> list;
    const auto spec = changed_fixture("qwen3_next", changes);
    for (const LayerSpec& layer : spec->layers) list.push_back(std::holds_alternative<MlpSpec>(layer.mlp));
    return list;
  };
  EXPECT_EQ(dense({{"mlp_only_layers", {0, 2}}}), (std::vector{true, false, true, false}));
  EXPECT_EQ(dense({{"decoder_sparse_step", 2}}), (std::vector{true, false, true, false}));
  expect_refused("qwen3_next", {{"num_experts", nullptr}}, "num_experts");
  expect_refused("qwen3_next", {{"shared_expert_intermediate_size", 0}}, "shared_expert_intermediate_size");
}

TEST(DeepseekV3, MakesWhatItsConfigurationSays) {
  const auto spec = changed_fixture("deepseek_v3", Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  const auto& l = std::get<LatentSpec>(spec->layers[1].mixer);
  EXPECT_EQ(l.query_rank, 24);
  EXPECT_EQ(l.shape.row_dim(), 40);
  EXPECT_TRUE(spec->ropes[0].interleaved);
  // YaRN with mscale_all_dim 1 and a factor of 4.
  const double mscale = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(l.scale, mscale * mscale / std::sqrt(24.0), 1e-6);
  EXPECT_TRUE(std::holds_alternative<MlpSpec>(spec->layers[0].mlp));
  const auto& moe = std::get<MoeSpec>(spec->layers[1].mlp);
  EXPECT_EQ(moe.router.scoring, kernels::Scoring::kSigmoid);
  EXPECT_EQ(moe.router.groups, 4);
  EXPECT_EQ(moe.router.chosen_groups, 2);
  EXPECT_EQ(moe.router.group_best, 2);
  EXPECT_FALSE(moe.correction.empty());
  EXPECT_TRUE(moe.shared && !moe.shared_is_gated);
}

// As V2-Lite: queries at once, a softmax without groups; as V2: the best expert speaks for a group.
TEST(DeepseekV2, ChoosesByASoftmax) {
  Json lite = {{"architectures", {"DeepseekV2ForCausalLM"}},
               {"q_lora_rank", nullptr},
               {"topk_method", "greedy"},
               {"scoring_func", "softmax"},
               {"norm_topk_prob", false}};
  const auto spec = changed_fixture("deepseek_v3", lite);
  ASSERT_TRUE(spec) << spec.error().message;
  const auto& l = std::get<LatentSpec>(spec->layers[0].mixer);
  EXPECT_FALSE(l.narrows_queries());
  EXPECT_EQ(l.input.parts[0].tensor, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(l.input.rows(), 4 * 24 + 40);
  const kernels::RouterShape router = std::get<MoeSpec>(spec->layers[1].mlp).router;
  EXPECT_EQ(router.scoring, kernels::Scoring::kSoftmax);
  EXPECT_EQ(router.groups, 1);
  EXPECT_FALSE(router.renormalise);
  EXPECT_TRUE(std::get<MoeSpec>(spec->layers[1].mlp).correction.empty());
  lite["topk_method"] = "group_limited_greedy";
  const auto groups = changed_fixture("deepseek_v3", lite);
  ASSERT_TRUE(groups) << groups.error().message;
  EXPECT_EQ(std::get<MoeSpec>(groups->layers[1].mlp).router.groups, 4);
  EXPECT_EQ(std::get<MoeSpec>(groups->layers[1].mlp).router.group_best, 1);
  lite["norm_topk_prob"] = true;
  expect_refused("deepseek_v3", lite, "norm_topk_prob");
}

TEST(DeepseekV3, RefusesWhatItDoesNotCompute) {
  const std::pair<Json, const char*> cases[] = {
      {{{"attention_bias", true}}, "attention_bias"},
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"rms_norm_eps", 5}}, "rms_norm_eps"},
      {{{"routed_scaling_factor", 0}}, "routed_scaling_factor"},
      {{{"moe_layer_freq", 2}}, "moe_layer_freq"},
      {{{"topk_method", "greedy"}}, "topk_method"},
      {{{"scoring_func", "softmax"}}, "scoring_func"},
      {{{"kv_lora_rank", nullptr}}, "kv_lora_rank"},
      {{{"kv_lora_rank", 1 << 19}}, "latent rank"},
      {{{"q_lora_rank", 0}}, "q_lora_rank"},
      {{{"qk_rope_head_dim", 7}}, "rope dimension"},
      {{{"qk_nope_head_dim", 0}}, "qk_nope_head_dim"},
      {{{"n_routed_experts", 1 << 20}}, "n_routed_experts"},
      {{{"num_hidden_layers", 4096}, {"n_routed_experts", 1024}}, "experts"},
      {{{"n_shared_experts", 1024}, {"moe_intermediate_size", 1 << 20}}, "shared experts"},
      {{{"first_k_dense_replace", nullptr}}, "first_k_dense_replace"},
      {{{"mlp_layer_types", {"dense"}}}, "mlp_layer_types"},
      {{{"mlp_layer_types", {"dense", "sparse", "other"}}}, "mlp_layer_types"}};
  for (const auto& [changes, param] : cases) expect_refused("deepseek_v3", changes, param);
}

// Which layers have indexers, and that the others read what those choose.
std::vector<bool> indexed(const ModelSpec& spec) {
  std::vector<bool> own;
  for (const LayerSpec& layer : spec.layers) {
    const auto& l = std::get<LatentSpec>(layer.mixer);
    own.push_back(l.indexer.has_value());
    EXPECT_NE(l.reads_last_choice, own.back());
  }
  return own;
}

TEST(DeepseekV32, MakesWhatItsConfigurationSays) {
  const auto spec = changed_fixture("deepseek_v32", Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, "deepseek_v32");
  EXPECT_EQ(indexed(*spec), std::vector(3, true));
  const auto& l = std::get<LatentSpec>(spec->layers[1].mixer);
  EXPECT_EQ(l.indexer->shape.pool, 1);
  EXPECT_EQ(l.indexer->shape.heads, 16);
  EXPECT_EQ(l.indexer->shape.dim, 16);
  EXPECT_EQ(l.indexer->shape.top_k, 24);
  EXPECT_EQ(l.input.rows(), 24 + 40 + 16 + 16);
  EXPECT_EQ(l.query.rows(), 4 * 24 + 16 * 16);
  EXPECT_TRUE(spec->ropes[static_cast<size_t>(l.rope)].interleaved);
  EXPECT_FALSE(spec->ropes[static_cast<size_t>(l.indexer->rope)].interleaved);
  EXPECT_EQ(spec->ropes[0].factor, spec->ropes[1].factor);
}

TEST(GlmMoeDsa, SomeLayersReadWhatAnEarlierOneChose) {
  const auto plain = changed_fixture("glm_moe_dsa", Json::object());
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(indexed(*plain), (std::vector{true, true, false}));
  EXPECT_EQ(plain->ropes.size(), 1U);  // pairs in both
  const auto layers = [](const Json& changes) {
    Json all = {{"indexer_types", nullptr}};
    all.merge_patch(changes);
    const auto spec = changed_fixture("glm_moe_dsa", all);
    EXPECT_TRUE(spec) << spec.error().message;
    return indexed(*spec);
  };
  EXPECT_EQ(layers(Json::object()), std::vector(3, true));
  EXPECT_EQ(layers({{"index_topk_freq", 4}}), (std::vector{true, true, false}));
  EXPECT_EQ(layers({{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}}), (std::vector{true, false, true}));
  EXPECT_EQ(layers({{"index_topk_pattern", "FSS"}, {"index_topk_freq", 2}}), (std::vector{true, false, false}));
  const auto halves = changed_fixture("glm_moe_dsa", {{"indexer_rope_interleave", false}});
  EXPECT_FALSE(
      halves->ropes[static_cast<size_t>(std::get<LatentSpec>(halves->layers[0].mixer).indexer->rope)].interleaved);
}

TEST(GlmMoeDsa, RefusesWhatItDoesNotCompute) {
  const std::pair<Json, const char*> cases[] = {
      {{{"q_lora_rank", nullptr}}, "q_lora_rank"},
      {{{"layer_types", {"indexed_attention", "full_attention", "indexed_attention"}}}, "layer_types"},
      {{{"moe_router_dtype", "bfloat16"}}, "moe_router_dtype"},
      {{{"index_topk", nullptr}}, "index_topk"},
      {{{"index_topk", 1 << 20}}, "index_topk"},
      {{{"index_n_heads", 0}}, "index_n_heads"},
      {{{"index_head_dim", "16"}}, "index_head_dim"},
      {{{"index_head_dim", 4}}, "layers.0.latent"},  // eight of them turn
      {{{"indexer_rope_interleave", 1}}, "indexer_rope_interleave"},
      {{{"indexer_types", {"full", "full"}}}, "indexer_types"},
      {{{"indexer_types", {"full", "full", "none"}}}, "indexer_types"},
      {{{"indexer_types", {"shared", "full", "full"}}}, "layers.0.latent"},
      {{{"indexer_types", nullptr}, {"index_topk_pattern", "FF"}}, "index_topk_pattern"},
      {{{"indexer_types", nullptr}, {"index_topk_pattern", "FFX"}}, "index_topk_pattern"},
      {{{"indexer_types", nullptr}, {"index_topk_freq", 0}}, "index_topk_freq"}};
  for (const auto& [changes, param] : cases) expect_refused("glm_moe_dsa", changes, param);
}

TEST(GlmDsa, GgufFilesSayWhichLayersHaveIndexers) {
  for (const auto& [name, own] : {std::pair{"gguf/deepseek_v32.gguf", std::vector{true, true, true}},
                                  {"gguf/glm_moe_dsa.gguf", std::vector{true, true, false}}}) {
    const weights::Checkpoint file = open_fixture(name);
    const auto spec = make_spec(file);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_TRUE(check_names(*spec, *file.tensors));
    EXPECT_EQ(indexed(*spec), own);
  }
}

// The layer that predicts further ahead is in the file, and not run; one more would be a mistake.
TEST(Glm4MoeLite, LeavesOutWhatPredictsFurtherAhead) {
  const weights::Checkpoint checkpoint = open_fixture("glm4_moe_lite");
  auto spec = make_spec(checkpoint);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 3U);
  EXPECT_EQ(spec->unread_layers, 1);
  EXPECT_TRUE(checkpoint.tensors->find("model.layers.3.eh_proj.weight"));
  EXPECT_TRUE(check_names(*spec, *checkpoint.tensors));
  spec->unread_layers = 0;
  EXPECT_FALSE(check_names(*spec, *checkpoint.tensors));
}

// One layer less: the last of the model itself is not taken for one that predicts further ahead.
TEST(Glm4MoeLite, NoLayerIsLostToANumberThatIsTooLow) {
  const weights::Checkpoint checkpoint = open_fixture("glm4_moe_lite");
  auto spec = changed_fixture("glm4_moe_lite",
                              {{"num_hidden_layers", 2}, {"mlp_layer_types", nullptr}, {"first_k_dense_replace", 1}});
  ASSERT_TRUE(spec) << spec.error().message;
  const auto named = check_names(*spec, *checkpoint.tensors);
  ASSERT_FALSE(named);
  EXPECT_TRUE(named.error().param.starts_with("model.layers.")) << named.error().message;
  spec->unread_layers = 2;
  EXPECT_TRUE(check_names(*spec, *checkpoint.tensors).error().param.starts_with("model.layers.2."));
}

// Glm4MoeLiteRMSNorm's own default, for norms that are made without one.
TEST(Glm4MoeLite, InnerNormsHaveAnEpsilonOfTheirOwn) {
  for (const char* model : {"glm4_moe_lite", "deepseek_v3"}) {
    const auto spec = changed_fixture(model, {{"rms_norm_eps", 1e-3}});
    EXPECT_FLOAT_EQ(spec->norm_epsilon, 1e-3F);
    EXPECT_FLOAT_EQ(std::get<LatentSpec>(spec->layers[0].mixer).norm_epsilon, 1e-6F);
  }
}

}  // namespace
}  // namespace quire::model
