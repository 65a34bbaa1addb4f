// Configurations of dense decoders, and what is done with one that says more than is understood.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/config.h"
#include "model/open_checkpoint.h"
#include "weights/test_files.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

std::string fixture(const std::string& name) { return std::string(QUIRE_TEST_DATA) + "/models/" + name; }

Json config_of(const std::string& name) {
  std::ifstream in(fixture(name) + "/config.json");
  return Json::parse(in);
}

Result<ModelSpec> spec_of(const Json& config) {
  weights::Checkpoint checkpoint;
  checkpoint.config_json = config.dump();
  return make_spec(checkpoint);
}

// A fixture's spec with some keys set, also to null.
Result<ModelSpec> with(const std::string& name, const Json& changes) {
  Json config = config_of(name);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return spec_of(config);
}

Result<ModelSpec> without(const std::string& name, const char* key) {
  Json config = config_of(name);
  config.erase(key);
  return spec_of(config);
}

template <class T>
void expect_refused(const Result<T>& result, ErrorKind kind, std::string_view param) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  EXPECT_EQ(result.error().param, param) << result.error().message;
  EXPECT_NE(result.error().message.find(param), std::string::npos) << result.error().message;
}

std::vector<int> windows_of(const ModelSpec& spec) {
  std::vector<int> windows;
  for (const auto& layer : spec.layers) windows.push_back(std::get<AttentionSpec>(layer.mixer).window);
  return windows;
}

std::vector<int> ropes_of(const ModelSpec& spec) {
  std::vector<int> ropes;
  for (const auto& layer : spec.layers) ropes.push_back(std::get<AttentionSpec>(layer.mixer).rope);
  return ropes;
}

TEST(Mistral, HasItsWindowOnEveryLayer) {
  EXPECT_EQ(windows_of(*with("mistral", Json::object())), (std::vector<int>{16, 16, 16, 16}));
  EXPECT_EQ(windows_of(*with("mistral", {{"sliding_window", nullptr}})), (std::vector<int>{0, 0, 0, 0}));
  expect_refused(without("mistral", "sliding_window"), ErrorKind::kCorruptFile, "sliding_window");
  expect_refused(with("mistral", {{"sliding_window", 0}}), ErrorKind::kCorruptFile, "sliding_window");
  expect_refused(with("mistral", {{"attention_bias", true}}), ErrorKind::kUnsupported, "attention_bias");
}

TEST(Qwen2, HasBiasesOfQueriesKeysAndValuesAlone) {
  for (const std::string name : {"qwen2", "gguf/qwen2.gguf"}) {
    const auto checkpoint = open_checkpoint(fixture(name));
    const auto spec = make_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().message;
    auto layer = spec->layers[1];
    for (const MatrixPart& part : layer.attention().qkv.parts) EXPECT_TRUE(part.has_bias());
    EXPECT_FALSE(layer.attention().output.parts[0].has_bias());
    EXPECT_FALSE(layer.dense().down.parts[0].has_bias());
  }
}

TEST(Qwen2, HasWindowsWhereTheConfigurationTurnsThemOn) {
  Json config = config_of("qwen2");
  config["layer_types"] = nullptr;
  config["sliding_window"] = 32;
  config["max_window_layers"] = 3;
  EXPECT_EQ(windows_of(*spec_of(config)), (std::vector<int>{0, 0, 0, 0}));
  config["use_sliding_window"] = true;
  EXPECT_EQ(windows_of(*spec_of(config)), (std::vector<int>{0, 0, 0, 32}));
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows_of(*spec_of(config)), (std::vector<int>{32, 0, 32, 0}));
  config["max_window_layers"] = -1;
  expect_refused(spec_of(config), ErrorKind::kCorruptFile, "max_window_layers");
}

// What transformers' Qwen2Config and Qwen3Config have where a configuration says nothing: 4096 from layer 28 on.
TEST(Qwen2, HasTheReferencesDefaultsOfWindows) {
  for (const char* model : {"qwen2", "qwen3"}) {
    Json config = config_of(model);
    for (const char* key : {"layer_types", "sliding_window", "max_window_layers"}) config.erase(key);
    config["num_hidden_layers"] = 30;
    config["use_sliding_window"] = true;
    std::vector<int> want(30, 0);
    want[28] = want[29] = 4096;
    EXPECT_EQ(windows_of(*spec_of(config)), want);
    config["max_window_layers"] = 29;
    want[28] = 0;
    EXPECT_EQ(windows_of(*spec_of(config)), want);
    config["sliding_window"] = nullptr;
    EXPECT_EQ(windows_of(*spec_of(config)), std::vector<int>(30, 0));
    config.erase("use_sliding_window");
    config["sliding_window"] = 16;
    EXPECT_EQ(windows_of(*spec_of(config)), std::vector<int>(30, 0));
  }
}

TEST(Qwen2, RefusesWindowsThatAreAskedForAndTurnedOff) {
  Json config = config_of("qwen2");
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  config["sliding_window"] = 32;
  for (const Json& use : {Json(false), Json(nullptr)}) {
    config["use_sliding_window"] = use;
    expect_refused(spec_of(config), ErrorKind::kUnsupported, "layer_types");
  }
  config["use_sliding_window"] = true;
  config["sliding_window"] = nullptr;
  expect_refused(spec_of(config), ErrorKind::kUnsupported, "layer_types");
}

// As transformers' Qwen3MoeModel: it knows no list of layers.
TEST(Qwen3Moe, HasItsWindowOnEveryLayer) {
  Json config = config_of("qwen3_moe");
  const size_t layers = config["num_hidden_layers"];
  config["use_sliding_window"] = true;
  config["sliding_window"] = 24;
  config["max_window_layers"] = 2;
  EXPECT_EQ(windows_of(*spec_of(config)), std::vector<int>(layers, 24));
  config.erase("sliding_window");
  EXPECT_EQ(windows_of(*spec_of(config)), std::vector<int>(layers, 4096));
  config["layer_types"] = std::vector<std::string>(layers, "full_attention");
  expect_refused(spec_of(config), ErrorKind::kUnsupported, "layer_types");
}

TEST(Phi3, HasFusedMatricesAndTurnsPartOfAHead) {
  for (const std::string name : {"phi3", "gguf/phi3.gguf"}) {
    const auto checkpoint = open_checkpoint(fixture(name));
    auto spec = make_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().message;
    LayerSpec& layer = spec->layers[2];
    EXPECT_EQ(layer.attention().qkv.parts.size(), 1U);
    EXPECT_EQ(layer.attention().qkv.rows(), 128);
    EXPECT_EQ(layer.dense().gate_up.parts.size(), 1U);
    EXPECT_EQ(layer.dense().gate_up.rows(), 192);
    EXPECT_EQ(spec->ropes[0].rotary_dim, 12);
  }
  EXPECT_EQ(windows_of(*with("phi3", {{"sliding_window", 20}})), (std::vector<int>{20, 20, 20, 20}));
}

TEST(SmolLM3, LeavesLayersWithoutRope) {
  for (const std::string name : {"smollm3", "gguf/smollm3.gguf"}) {
    const auto checkpoint = open_checkpoint(fixture(name));
    EXPECT_EQ(ropes_of(*make_spec(*checkpoint)), (std::vector<int>{0, 0, 0, -1}));
  }
  EXPECT_EQ(ropes_of(*with("smollm3", {{"no_rope_layers", {0, 1, 0, 1}}})), (std::vector<int>{-1, 0, -1, 0}));
  EXPECT_EQ(ropes_of(*with("smollm3", {{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 2}})),
            (std::vector<int>{0, -1, 0, -1}));
  Json windows = {{"use_sliding_window", true}, {"sliding_window", 24}, {"layer_types", nullptr}};
  EXPECT_EQ(windows_of(*with("smollm3", windows)), (std::vector<int>{0, 0, 0, 24}));
  windows["max_window_layers"] = 28;  // which the published model says and nothing reads
  EXPECT_EQ(windows_of(*with("smollm3", windows)), (std::vector<int>{0, 0, 0, 24}));
  windows["sliding_window"] = nullptr;
  EXPECT_EQ(windows_of(*with("smollm3", windows)), (std::vector<int>{0, 0, 0, 0}));
  for (const Json& wrong : {Json{1, 1, 1}, Json{1, 1, 1, 2}, Json{1, 1, 1, true}, Json(4)})
    expect_refused(with("smollm3", {{"no_rope_layers", wrong}}), ErrorKind::kCorruptFile, "no_rope_layers");
  expect_refused(with("smollm3", {{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 0}}), ErrorKind::kCorruptFile,
                 "no_rope_layer_interval");
}

TEST(Gemma2, HasCapsAndAWindowOnEveryOtherLayer) {
  for (const std::string name : {"gemma2", "gguf/gemma2.gguf"}) {
    const auto checkpoint = open_checkpoint(fixture(name));
    auto spec = make_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(windows_of(*spec), (std::vector<int>{16, 0, 16, 0}));
    EXPECT_EQ(spec->layers[1].attention().soft_cap, 20);
    EXPECT_EQ(spec->logit_soft_cap, 15);
  }
  EXPECT_EQ(windows_of(*with("gemma2", {{"layer_types", nullptr}})), (std::vector<int>{16, 0, 16, 0}));
  // The reference reads no such key.
  EXPECT_EQ(windows_of(*with("gemma2", {{"layer_types", nullptr}, {"sliding_window_pattern", 4}})),
            (std::vector<int>{16, 0, 16, 0}));
  expect_refused(with("gemma2", {{"use_bidirectional_attention", true}}), ErrorKind::kUnsupported,
                 "use_bidirectional_attention");
  expect_refused(with("gemma2", {{"query_pre_attn_scalar", 0}}), ErrorKind::kCorruptFile, "query_pre_attn_scalar");
}

// A released configuration leaves out what is the reference's default.
TEST(Gemma3, IsFoundInAMultimodalConfiguration) {
  Json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                 {"eos_token_id", {1, 106}},
                 {"mm_tokens_per_image", 256},
                 {"vision_config", {{"hidden_size", 1152}}},
                 {"text_config",
                  {{"hidden_size", 2560},
                   {"intermediate_size", 10240},
                   {"num_hidden_layers", 34},
                   {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                   {"sliding_window", 1024}}}};
  auto spec = spec_of(config);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->layers.size(), 34U);
  EXPECT_EQ(spec->vocab_size, 262208);
  EXPECT_EQ(spec->max_positions, 131072);
  EXPECT_EQ(spec->end_tokens, (std::vector<TokenId>{1, 106}));
  EXPECT_EQ(spec->layers[5].attention().q_heads, 8);
  EXPECT_EQ(spec->layers[5].attention().head_dim, 256);
  EXPECT_EQ(spec->layers[5].attention().window, 0);
  EXPECT_EQ(spec->layers[4].attention().window, 1024);
  EXPECT_EQ(spec->ropes[0].factor, 8);
  EXPECT_EQ(spec->embedding, "language_model.model.embed_tokens.weight");
  config["text_config"]["num_attention_heads"] = 0;
  expect_refused(spec_of(config), ErrorKind::kCorruptFile, "num_attention_heads");
  config["text_config"] = {{"logit_scale", 2}};
  expect_refused(spec_of(config), ErrorKind::kUnsupported, "logit_scale");
  config["text_config"] = 3;
  expect_refused(spec_of(config), ErrorKind::kCorruptFile, "text_config");
  config.erase("text_config");
  expect_refused(spec_of(config), ErrorKind::kCorruptFile, "text_config");
}

TEST(Understood, KeysThatNothingReadsAreRefused) {
  for (const char* model : {"llama_tied", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma2", "gemma3"}) {
    for (const Json& value : {Json(0.5), Json("yes"), Json(true), Json::array({1}), Json::object({{"a", 1}})})
      expect_refused(with(model, {{"residual_multiplier", value}}), ErrorKind::kUnsupported, "residual_multiplier");
    for (const Json& nothing : {Json(nullptr), Json(false), Json(""), Json::array(), Json::object()})
      EXPECT_TRUE(with(model, {{"residual_multiplier", nothing}})) << model;
    EXPECT_TRUE(with(model, {{"use_cache", true}, {"torch_dtype", "bfloat16"}, {"attention_dropout", 0.1}})) << model;
  }
  // Two spellings at once: which of them holds?
  expect_refused(with("llama_tied", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}), ErrorKind::kUnsupported,
                 "rope_scaling");
}

TEST(Understood, KeysOfGgufThatNothingReadsAreRefused) {
  std::ifstream in(fixture("gguf/qwen2.gguf"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::string known = "qwen2.rope.freq_base", unknown = "qwen2.residual_scal";
  const size_t at = bytes.find(known);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, known.size(), unknown + "e");
  const weights::TemporaryFolder folder;
  weights::write_file(folder / "model.gguf", bytes);
  auto checkpoint = open_checkpoint(folder / "model.gguf");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  expect_refused(make_spec(*checkpoint), ErrorKind::kUnsupported, "residual_scale");
}

TEST(Understood, AnUnknownArchitectureIsToldTheClosest) {
  const auto closest = [](const char* name) {
    const auto spec = with("llama_tied", {{"architectures", {name}}});
    EXPECT_FALSE(spec);
    const std::string& text = spec.error().message;
    const std::string before = "the closest is ";
    const size_t at = text.find(before) + before.size();
    return text.substr(at, text.find(',', at) - at);
  };
  EXPECT_EQ(closest("Phi4ForCausalLM"), "Phi3ForCausalLM");
  EXPECT_EQ(closest("MixtralForCausalLM"), "MistralForCausalLM");
  EXPECT_EQ(closest("Gemma3ForConditionalGeneratio"), "Gemma3ForConditionalGeneration");
  EXPECT_FALSE(with("llama_tied", {{"architectures", {std::string(1 << 20, 'x')}}}));
}

TEST(ConfigSource, NamesTheKeyOfANumberThatIsTooLarge) {
  const auto config = HuggingFaceConfig::parse(R"({"rope": {"theta": 1e400}})", "");
  ASSERT_FALSE(config);
  EXPECT_NE(config.error().message.find("theta"), std::string::npos) << config.error().message;
}

TEST(ConfigSource, OverridesAreMerged) {
  const auto merged = with_overrides(R"({"a": 1, "in": {"x": 1, "y": [1, 2]}, "b": {"c": 1}})",
                                     R"({"in": {"y": [3], "z": {"w": 4}}, "b": 5, "a": null, "new": "n"})");
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(Json::parse(*merged),
            Json::parse(R"({"a": null, "in": {"x": 1, "y": [3], "z": {"w": 4}}, "b": 5, "new": "n"})"));
  for (const char* wrong : {"", "3", "[]", "{", "{\"a\": 1e999}"}) {
    const auto refused = with_overrides("{}", wrong);
    expect_refused(refused, ErrorKind::kInvalidRequest, "hf_overrides");
  }
  expect_refused(with_overrides("[]", "{}"), ErrorKind::kCorruptFile, "");
}

TEST(ConfigSource, IsReadInsteadOfTheFoldersOwn) {
  const weights::TemporaryFolder folder, model;
  Json config = config_of("mistral");
  config["sliding_window"] = 77;
  weights::write_file(folder / "config.json", config.dump());
  weights::write_file(folder / "other", config.dump());
  for (const auto& path : {folder.path(), folder / "config.json", folder / "other"}) {
    const auto checkpoint = open_checkpoint(fixture("mistral"), {path, R"({"vocab_size": 299})"});
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const auto spec = make_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(windows_of(*spec)[0], 77);
    EXPECT_EQ(spec->vocab_size, 299);
  }
  // A folder without a configuration of its own.
  std::filesystem::copy(fixture("mistral") + "/model.safetensors", model / "model.safetensors");
  EXPECT_FALSE(open_checkpoint(model.path()));
  EXPECT_TRUE(open_checkpoint(model.path(), {folder.path(), {}}));

  EXPECT_FALSE(open_checkpoint(fixture("mistral"), {folder / "none", {}}));
  expect_refused(open_checkpoint(fixture("mistral"), {{}, "[]"}), ErrorKind::kInvalidRequest, "hf_overrides");
  const std::string gguf = fixture("gguf/qwen2.gguf");
  expect_refused(open_checkpoint(gguf, {folder.path(), {}}), ErrorKind::kInvalidRequest, "hf_config_path");
  expect_refused(open_checkpoint(gguf, {{}, "{}"}), ErrorKind::kInvalidRequest, "hf_overrides");
}

}  // namespace
}  // namespace quire::model
