// What gpt-oss's configurations become, and what is refused. The answers are in tests/engine/golden_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm_layout.h"
#include "model/architectures/architectures.h"
#include "model/load.h"
#include "model/test_fixtures.h"
#include "weights/test_files.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

std::vector<int> windows_of(const ModelSpec& spec) {
  std::vector<int> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.attention().window);
  return windows;
}

const MoeSpec& experts_of(const ModelSpec& spec) { return std::get<MoeSpec>(spec.layers.back().mlp); }

TEST(GptOss, MakesWhatItsConfigurationSays) {
  const auto spec = changed_fixture("gpt_oss", Json::object());
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(windows_of(*spec), (std::vector{16, 0, 16, 0}));
  const AttentionSpec& attention = spec->layers.back().attention();
  EXPECT_EQ(attention.sinks, "model.layers.3.self_attn.sinks");
  EXPECT_EQ(attention.qkv.parts[2].bias, "model.layers.3.self_attn.v_proj.bias");
  EXPECT_EQ(attention.output.parts[0].bias, "model.layers.3.self_attn.o_proj.bias");
  EXPECT_FALSE(spec->ropes[0].truncate);
  const MoeSpec& moe = experts_of(*spec);
  EXPECT_EQ(moe.router.scoring, kernels::Scoring::kSoftmax);
  EXPECT_TRUE(moe.router.renormalise);
  EXPECT_EQ(moe.scores.parts[0].bias, "model.layers.3.mlp.router.bias");
  ASSERT_EQ(moe.experts.size(), 4U);
  const MlpSpec& expert = moe.experts[2];
  EXPECT_EQ(expert.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(std::pair(expert.alpha, expert.limit), std::pair(1.702F, 7.F));
  for (const int i : {0, 1}) {
    const MatrixPart& part = expert.gate_up.parts[static_cast<size_t>(i)];
    EXPECT_EQ(part.tensor, "model.layers.3.mlp.experts.gate_up_proj");
    EXPECT_EQ(part.bias, part.tensor + "_bias");
    EXPECT_EQ(part.groups->first, i);
    EXPECT_EQ(part.tensor_rows(), 64);
    EXPECT_EQ(std::pair(part.stack, part.entry), std::pair(4, 2));
  }
}

TEST(GptOss, PublishedFilesHoldOutputsInRowsAndOthersInputs) {
  EXPECT_TRUE(experts_of(*changed_fixture("gpt_oss", Json::object())).experts[0].down.parts[0].transposed);
  EXPECT_FALSE(experts_of(*changed_fixture("gpt_oss_mxfp4", Json::object())).experts[0].down.parts[0].transposed);
  const auto checkpoint = open_fixture("gpt_oss_mxfp4");
  EXPECT_EQ(checkpoint.quantisation, "MXFP4");
  const auto* stack = checkpoint.tensors->find("model.layers.0.mlp.experts.gate_up_proj");
  ASSERT_NE(stack, nullptr);
  EXPECT_EQ(describe(*stack), "[4, 64, 64] MXFP4");
  EXPECT_EQ(default_profile(*changed_fixture("gpt_oss_mxfp4", Json::object()), *checkpoint.tensors), Profile::kQ8);
}

// Experts stay in their 4 bits: 18 bytes for 32 of them.
TEST(GptOss, ExpertsOfFourBitsStayFourBits) {
  const auto checkpoint = open_fixture("gpt_oss_mxfp4");
  Allocator allocator;
  ThreadPool pool{1};
  const auto model = load_weights(*make_spec(checkpoint), *checkpoint.tensors, Profile::kQ8, {allocator, pool});
  ASSERT_TRUE(model) << model.error().message;
  const auto& expert = std::get<MoeWeights>(model->layers[0].mlp).experts[1];
  ASSERT_EQ(expert.gate_up.parts.size(), 1U);
  EXPECT_EQ(expert.gate_up.parts[0].matrix.layout(), kernels::Layout::kInt4Mx);
  EXPECT_EQ(expert.gate_up.parts[0].matrix.bytes(), 64U * 64 / 32 * 18);
  EXPECT_EQ(expert.gate_up.bias.size(), 64U);
}

TEST(GptOss, OlderConfigurationsLeaveThingsOut) {
  const Json old = {{"layer_types", nullptr},
                    {"swiglu_alpha", nullptr},
                    {"swiglu_limit", nullptr},
                    {"attention_bias", nullptr},
                    {"experts_per_token", 2},
                    {"initial_context_length", 64},
                    {"rope_parameters", nullptr},
                    {"rope_theta", 150000},
                    {"rope_scaling",
                     {{"rope_type", "yarn"},
                      {"factor", 8.0},
                      {"beta_fast", 32.0},
                      {"beta_slow", 1.0},
                      {"original_max_position_embeddings", 64},
                      {"truncate", false}}}};
  const auto spec = changed_fixture("gpt_oss", old);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(windows_of(*spec), (std::vector{16, 0, 16, 0}));
  EXPECT_EQ(experts_of(*spec).experts[0].limit, 7.F);
  EXPECT_TRUE(spec->layers[0].attention().qkv.parts[0].has_bias());
  EXPECT_EQ(spec->ropes[0].factor, 8);
  const auto other =
      changed_fixture("gpt_oss", {{"swiglu_limit", 5.5}, {"swiglu_alpha", 1}, {"attention_bias", false}});
  EXPECT_EQ(std::pair(experts_of(*other).experts[0].alpha, experts_of(*other).experts[0].limit), std::pair(1.F, 5.5F));
  EXPECT_FALSE(other->layers[0].attention().qkv.parts[0].has_bias());
}

TEST(GptOss, GgufNamesAreItsOwn) {
  const auto spec = make_spec(open_fixture("gguf/gpt_oss.gguf"));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(windows_of(*spec), (std::vector{16, 0, 16, 0}));
  EXPECT_EQ(spec->layers[1].mlp_norm.tensor, "blk.1.post_attention_norm.weight");
  EXPECT_EQ(experts_of(*spec).experts[1].gate_up.parts[1].bias, "blk.3.ffn_up_exps.bias");
  EXPECT_EQ(experts_of(*spec).scores.parts[0].bias, "blk.3.ffn_gate_inp.bias");
  EXPECT_FALSE(spec->ropes[0].truncate);
}

// The end tokens of a GGUF file with these tokens, of which number 2 is named as its end.
std::vector<TokenId> ends_of(const std::vector<std::string>& tokens) {
  weights::ByteWriter out;
  out.raw("GGUF").put<uint32_t>(3).put<uint64_t>(1).put<uint64_t>(2);
  out.string("tokenizer.ggml.eos_token_id").put<uint32_t>(4).put<uint32_t>(2);
  out.string("tokenizer.ggml.tokens").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(tokens.size());
  for (const std::string& token : tokens) out.string(token);
  out.string("x").put<uint32_t>(1).put<uint64_t>(8).put<uint32_t>(0).put<uint64_t>(0).pad_to(32).raw(
      std::string(32, 0));
  const weights::TemporaryFolder folder;
  weights::write_file(folder / "model.gguf", out.text());
  const auto file = weights::GgufFile::open(folder / "model.gguf");
  EXPECT_TRUE(file) << file.error().message;
  const auto ends = GgufConfig(**file, "gpt-oss").end_tokens(static_cast<int>(tokens.size()));
  EXPECT_TRUE(ends) << ends.error().message;
  return *ends;
}

// An answer has several messages, each with an end.
TEST(GptOss, MessagesEndNoAnswer) {
  EXPECT_EQ(ends_of({"a", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"}), (std::vector<TokenId>{2, 3, 4}));
  EXPECT_EQ(ends_of({"a", "<|end|>", "</s>", "<|call|>"}), (std::vector<TokenId>{2, 1, 3}));
}

TEST(GptOss, RefusesWhatItDoesNotCompute) {
  const std::pair<Json, const char*> cases[] = {
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"num_local_experts", nullptr}}, "num_local_experts"},
      {{{"num_local_experts", 1 << 20}}, "num_local_experts"},
      {{{"num_experts_per_tok", 0}}, "num_experts_per_tok"},
      {{{"sliding_window", nullptr}}, "sliding_window"},
      {{{"swiglu_limit", 0}}, "swiglu_limit"},
      {{{"swiglu_limit", "7"}}, "swiglu_limit"},
      {{{"layer_types", {"full_attention"}}}, "layer_types"},
      {{{"num_hidden_layers", 4096}, {"layer_types", nullptr}, {"num_local_experts", 1024}}, "experts"},
  };
  for (const auto& [changes, param] : cases) {
    const auto spec = changed_fixture("gpt_oss", changes);
    ASSERT_FALSE(spec) << changes;
    EXPECT_EQ(spec.error().param, param) << spec.error().message;
  }
}

}  // namespace
}  // namespace quire::model
