// Configurations and tensors of GLM-5.3-Flash.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/architectures/architectures.h"
#include "model/load.h"
#include "model/tensor_names.h"
#include "model/test_fixtures.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

constexpr const char* kFixture = "glm5_next";

Json text(const Json& changes) { return {{"text_config", changes}}; }

std::vector<bool> indexed(const ModelSpec& spec) {
  std::vector<bool> list;
  for (const LayerSpec& layer : spec.layers) list.push_back(std::holds_alternative<LatentSpec>(layer.mixer));
  return list;
}

TEST(Glm5Next, MakesWhatItsConfigurationSays) {
  const auto spec = changed_fixture(kFixture, Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->architecture, "glm5_next");
  EXPECT_EQ(spec->end_tokens, std::vector{2});
  EXPECT_TRUE(spec->ropes.empty());
  ASSERT_TRUE(spec->streams);
  EXPECT_EQ(spec->streams->count, 4);
  EXPECT_EQ(spec->streams->iterations, 20);
  EXPECT_FLOAT_EQ(spec->streams->epsilon, 1e-6F);
  EXPECT_EQ(indexed(*spec), (std::vector{false, true, false, true}));
  EXPECT_EQ(spec->layers[0].attention_streams->scores.cols, 4 * 48);
  EXPECT_EQ(spec->layers[0].mlp_streams->scores.rows(), 24);

  const auto& g = std::get<GatedDeltaSpec>(spec->layers[2].mixer);
  EXPECT_EQ(g.shape.heads, 2);
  EXPECT_EQ(g.shape.key_heads, 2);
  EXPECT_EQ(g.shape.key_dim, 16);
  EXPECT_EQ(g.shape.value_dim, 16);
  EXPECT_EQ(g.shape.decay_floor, -5);
  EXPECT_EQ(g.shape.decays(), 32);
  EXPECT_TRUE(g.sigmoid_gate);

  const auto& l = std::get<LatentSpec>(spec->layers[3].mixer);
  EXPECT_EQ(l.rope, -1);
  EXPECT_EQ(l.shape.rope_dim, 0);
  EXPECT_FLOAT_EQ(l.norm_epsilon, 1e-5F);
  EXPECT_FLOAT_EQ(l.scale, 1 / std::sqrt(24.0F));
  ASSERT_TRUE(l.indexer);
  EXPECT_EQ(l.indexer->rope, -1);
  EXPECT_EQ(l.indexer->shape.pool, 4);
  EXPECT_EQ(l.indexer->shape.top_k, 16);
  EXPECT_FLOAT_EQ(l.indexer->norm_epsilon, 1e-6F);

  const auto bounded = [](const MlpSpec& m) {
    return m.activation == Activation::kClampedSwiglu && m.alpha == 1 && m.limit == 2 && m.up_offset == 0;
  };
  EXPECT_TRUE(bounded(spec->layers[0].dense()));
  for (const size_t layer : {1U, 2U, 3U}) {
    const auto& moe = std::get<MoeSpec>(spec->layers[layer].mlp);
    EXPECT_EQ(moe.router.scoring, kernels::Scoring::kSigmoid);
    EXPECT_FLOAT_EQ(moe.router.scaling, 2.5F);
    EXPECT_TRUE(bounded(moe.experts.back()));
    EXPECT_TRUE(bounded(*moe.shared));
  }
}

// As the reference's Glm5NextTextConfig has them.
TEST(Glm5Next, WhatIsLeftOutIsTheReferencesDefault) {
  weights::Checkpoint checkpoint;
  checkpoint.config_json =
      Json{{"architectures", {"Glm5NextForConditionalGeneration"}}, {"text_config", Json::object()}}.dump();
  const auto spec = make_spec(checkpoint);
  ASSERT_TRUE(spec) << spec.error().message;
  ASSERT_TRUE(validate(*spec));
  ASSERT_EQ(spec->layers.size(), 45U);
  EXPECT_EQ(spec->hidden_size, 4096);
  EXPECT_EQ(spec->vocab_size, 154880);
  EXPECT_EQ(spec->max_positions, 1 << 20);
  for (size_t i = 0; i < 45; ++i) {
    EXPECT_EQ(indexed(*spec)[i], i % 4 == 3) << i;
    EXPECT_EQ(std::holds_alternative<MlpSpec>(spec->layers[i].mlp), i < 3) << i;
  }
  const auto& l = std::get<LatentSpec>(spec->layers[43].mixer);
  EXPECT_EQ(l.shape.heads, 64);
  EXPECT_EQ(l.shape.row_dim(), 512);
  EXPECT_EQ(l.indexer->shape.pool, 16);
  EXPECT_EQ(l.indexer->shape.top_k, 2048);
  EXPECT_EQ(std::get<MoeSpec>(spec->layers[44].mlp).experts.size(), 288U);
  EXPECT_EQ(spec->unread_layers, 0);
}

TEST(Glm5Next, OlderConfigurationsSayItOtherwise) {
  const Json old = {{"linear_num_heads", nullptr},
                    {"linear_attn_config",
                     {{"num_heads", 2}, {"head_dim", 16}, {"short_conv_kernel_size", 4}, {"gate_lower_bound", -3}}},
                    {"layer_types", {"linear_attention", "full_attention", "linear_attention", "full_attention"}}};
  const auto spec = changed_fixture(kFixture, text(old));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(std::get<GatedDeltaSpec>(spec->layers[0].mixer).shape.decay_floor, -3);
  EXPECT_EQ(indexed(*spec), (std::vector{false, true, false, true}));
}

TEST(Glm5Next, RefusesWhatItDoesNotCompute) {
  const std::pair<Json, const char*> cases[] = {
      {{{"attention_bias", true}}, "attention_bias"},
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"qk_rope_head_dim", 8}}, "qk_rope_head_dim"},
      {{{"num_key_value_heads", 2}}, "num_key_value_heads"},
      {{{"moe_router_dtype", "bfloat16"}}, "moe_router_dtype"},
      {{{"index_kpool_always_select_tail", false}}, "index_kpool_always_select_tail"},
      {{{"index_kpool", 5}}, "top k"},
      {{{"index_kpool", 0}}, "index_kpool"},
      {{{"indexer_types", {"full", "full", "full", "shared"}}}, "indexer_types"},
      {{{"layer_types", {"linear_attention", "indexed_attention"}}}, "layer_types"},
      {{{"layer_types", {"indexed_attention", "full_attention", "linear_attention", "linear_attention"}}},
       "layer_types"},
      {{{"mlp_layer_types", {"dense", "sparse", "sparse", "other"}}}, "mlp_layer_types"},
      {{{"linear_lower_bound", 0}}, "linear_lower_bound"},
      {{{"linear_lower_bound", -1000}}, "decay floor"},
      {{{"linear_head_dim", 512}}, "key dimension"},
      {{{"linear_num_heads", 0}}, "linear_num_heads"},
      {{{"linear_conv_kernel_dim", 9}}, "convolution"},
      {{{"linear_attn_config", {{"kda_layers", {1}}}}}, "linear_attn_config"},
      {{{"hc_mult", 1}}, "streams"},
      {{{"hc_mult", 9}}, "hc_mult"},
      {{{"hc_sinkhorn_iters", 0}}, "hc_sinkhorn_iters"},
      {{{"hc_eps", -1}}, "epsilon"},
      {{{"swiglu_limit", 0}}, "swiglu_limit"},
      {{{"scoring_func", "softmax"}}, "scoring_func"},
      {{{"rope_parameters", {{"rope_theta", 1}}}}, "rope_parameters"},
      {{{"some_new_option", 3}}, "some_new_option"}};
  for (const auto& [changes, param] : cases) expect_refused(kFixture, text(changes), param);
}

// Null is no default.
TEST(Glm5Next, RefusesWhatIsNull) {
  for (const std::string key : {"q_lora_rank", "linear_lower_bound", "hc_mult", "index_kpool", "swiglu_limit"}) {
    weights::Checkpoint checkpoint = open_fixture(kFixture);
    Json config = Json::parse(checkpoint.config_json);
    config["text_config"][key] = nullptr;
    checkpoint.config_json = config.dump();
    const auto spec = make_spec(checkpoint);
    ASSERT_FALSE(spec) << key;
    EXPECT_EQ(spec.error().param, key);
  }
}

// The vision tower and the layer that predicts further ahead are in the file, and not run; what else is there is read.
TEST(Glm5Next, ReadsAllTensorsButThoseOfOtherModels) {
  const weights::Checkpoint checkpoint = open_fixture(kFixture);
  auto spec = make_spec(checkpoint);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 4U);
  EXPECT_EQ(spec->unread_layers, 1);
  EXPECT_TRUE(checkpoint.tensors->find("model.language_model.layers.4.eh_proj.weight"));
  EXPECT_TRUE(checkpoint.tensors->find("model.visual.patch_embed.proj.weight"));
  EXPECT_TRUE(check_names(*spec, *checkpoint.tensors));
  spec->unread_layers = 0;
  EXPECT_FALSE(check_names(*spec, *checkpoint.tensors));
  spec->unread_layers = 1;
  spec->layers[0].mlp_streams.reset();
  const auto unread = check_names(*spec, *checkpoint.tensors);
  ASSERT_FALSE(unread);
  EXPECT_TRUE(unread.error().param.starts_with("model.language_model.layers.0.hc_ffn_")) << unread.error().param;
}

}  // namespace
}  // namespace quire::model
