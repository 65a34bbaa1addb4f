// Configurations of Llama 4.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/architectures/architectures.h"
#include "model/open_checkpoint.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

Result<ModelSpec> changed(const Json& changes) {
  auto checkpoint = open_checkpoint(std::string(QUIRE_TEST_DATA) + "/models/llama4");
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  Json config = Json::parse(checkpoint->config_json);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  checkpoint->config_json = config.dump();
  auto spec = make_spec(*checkpoint);
  if (spec)
    if (auto valid = validate(*spec); !valid) return std::unexpected(valid.error());
  return spec;
}

void expect_refused(const Json& changes, const std::string& param) {
  const auto spec = changed(changes);
  ASSERT_FALSE(spec) << changes;
  EXPECT_EQ(spec.error().param, param) << spec.error().message;
}

template <class T, class F>
std::vector<T> of_layers(const Result<ModelSpec>& spec, F f) {
  EXPECT_TRUE(spec) << spec.error().message;
  std::vector<T> all;
  for (const LayerSpec& layer : spec->layers) all.push_back(f(layer));
  return all;
}

std::vector<int> chunks(const Result<ModelSpec>& spec) {
  return of_layers<int>(spec, [](const LayerSpec& l) { return l.attention().chunk; });
}
std::vector<int> ropes(const Result<ModelSpec>& spec) {
  return of_layers<int>(spec, [](const LayerSpec& l) { return l.attention().rope; });
}
std::vector<int> steps(const Result<ModelSpec>& spec) {
  return of_layers<int>(spec, [](const LayerSpec& l) { return l.attention().growth.step; });
}
std::vector<bool> normed(const Result<ModelSpec>& spec) {
  return of_layers<bool>(spec, [](const LayerSpec& l) { return l.attention().q_norm.present(); });
}
std::vector<bool> sparse(const Result<ModelSpec>& spec) {
  return of_layers<bool>(spec, [](const LayerSpec& l) { return std::holds_alternative<MoeSpec>(l.mlp); });
}

TEST(Llama4, MakesWhatItsConfigurationSays) {
  const auto spec = changed(Json::object());
  EXPECT_EQ(chunks(spec), (std::vector{32, 32, 32, 0}));
  EXPECT_EQ(ropes(spec), (std::vector{0, 0, 0, -1}));
  EXPECT_EQ(steps(spec), (std::vector{0, 0, 0, 16}));
  EXPECT_EQ(normed(spec), (std::vector{true, true, true, false}));
  EXPECT_EQ(sparse(spec), (std::vector{false, true, false, true}));
  EXPECT_TRUE(spec->ropes[0].interleaved);
  EXPECT_EQ(spec->layers[0].dense().size, 48);
  const auto& moe = std::get<MoeSpec>(spec->layers[1].mlp);
  EXPECT_TRUE(moe.weighs_inputs);
  EXPECT_EQ(moe.router.scoring, kernels::Scoring::kSigmoid);
  EXPECT_FALSE(moe.router.renormalise);
  EXPECT_EQ(moe.shared->size, 32);
  EXPECT_EQ(moe.experts[3].gate_up.parts[0].entry, 3);
  EXPECT_TRUE(moe.experts[3].gate_up.parts[0].transposed);
}

TEST(Llama4, FollowsItsLists) {
  EXPECT_EQ(ropes(changed({{"no_rope_layers", {0, 1, 1, 0}}, {"layer_types", nullptr}})), (std::vector{-1, 0, 0, -1}));
  EXPECT_EQ(chunks(changed({{"no_rope_layers", {0, 1, 1, 0}}, {"layer_types", nullptr}})), (std::vector{0, 32, 32, 0}));
  EXPECT_EQ(ropes(changed({{"no_rope_layers", Json::array()}})), (std::vector{0, 0, 0, -1}));  // as published
  EXPECT_EQ(ropes(changed({{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 2}})), (std::vector{0, -1, 0, -1}));
  EXPECT_EQ(sparse(changed({{"moe_layers", nullptr}, {"interleave_moe_layer_step", 1}})),
            (std::vector{true, true, true, true}));
  EXPECT_EQ(sparse(changed({{"moe_layers", {0, 3}}})), (std::vector{true, false, false, true}));
  EXPECT_EQ(sparse(changed({{"moe_layers", Json::array()}})), (std::vector{false, false, false, false}));
  EXPECT_EQ(normed(changed({{"use_qk_norm", false}})), (std::vector{false, false, false, false}));
  for (const Json& off : {Json(false), Json(0)})
    EXPECT_EQ(steps(changed({{"attn_temperature_tuning", off}})), (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(steps(changed({{"attn_temperature_tuning", 4}})), (std::vector{0, 0, 0, 16}));
  EXPECT_EQ(steps(changed({{"floor_scale", nullptr}})), (std::vector{0, 0, 0, 8192}));
}

TEST(Llama4, RefusesWhatItDoesNotCompute) {
  const Json all_full = {"full_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_TRUE(changed({{"attention_chunk_size", nullptr}, {"layer_types", all_full}}));
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 10000.0}};
  const std::pair<Json, const char*> cases[] = {{{{"attention_chunk_size", nullptr}}, "attention_chunk_size"},
                                                {{{"attention_chunk_size", 0}}, "attention_chunk_size"},
                                                {{{"attn_temperature_tuning", "yes"}}, "attn_temperature_tuning"},
                                                {{{"floor_scale", 0}}, "floor_scale"},
                                                {{{"attn_scale", -1}}, "attn_scale"},
                                                {{{"hidden_act", "gelu"}}, "hidden_act"},
                                                {{{"mlp_bias", true}}, "mlp_bias"},
                                                {{{"no_rope_layers", {1, 1}}}, "no_rope_layers"},
                                                {{{"layer_types", {"sliding_attention"}}}, "layer_types"},
                                                {{{"moe_layers", {-1}}}, "moe_layers"},
                                                {{{"num_experts_per_tok", 5}}, "num_experts_per_tok"},
                                                {{{"num_local_experts", 0}}, "num_local_experts"},
                                                {{{"rope_parameters", yarn}}, "rope"}};
  for (const auto& [changes, param] : cases) expect_refused(changes, param);
}

// As the reference's Llama4TextConfig has them.
TEST(Llama4, IsFoundInAMultimodalConfiguration) {
  weights::Checkpoint checkpoint;
  const Json rope = {{"rope_type", "llama3"},
                     {"factor", 16.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 1.0},
                     {"original_max_position_embeddings", 8192}};
  const Json text = {{"rope_scaling", rope}, {"no_rope_layers", Json::array()}, {"eos_token_id", {200001, 200007}}};
  checkpoint.config_json = Json{
      {"architectures", {"Llama4ForConditionalGeneration"}},
      {"boi_token_index", 200080},
      {"image_token_index", 200092},
      {"vision_config", {{"hidden_size", 1408}}},
      {"text_config", text}}.dump();
  const auto spec = make_spec(checkpoint);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 48U);
  EXPECT_EQ(spec->layers[0].attention().chunk, 8192);
  EXPECT_EQ(spec->layers[3].attention().growth.step, 8192);
  EXPECT_EQ(std::get<MoeSpec>(spec->layers[0].mlp).experts.size(), 16U);
  EXPECT_EQ(spec->ropes[0].theta, 500000);
  EXPECT_EQ(spec->ropes[0].factor, 16);
  EXPECT_EQ(spec->embedding, "language_model.model.embed_tokens.weight");
  EXPECT_EQ(spec->head.parts[0].tensor, "language_model.lm_head.weight");
  EXPECT_EQ(spec->end_tokens, (std::vector<TokenId>{200001, 200007}));
}

}  // namespace
}  // namespace quire::model
