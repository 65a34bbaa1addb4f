#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "model/architectures/architectures.h"
#include "model/config.h"
#include "model/load.h"
#include "model/open_checkpoint.h"
#include "model/test_fixtures.h"
#include "weights/checkpoint.h"
#include "weights/test_files.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;
using weights::Tensor;
using weights::WeightFormat;

// Expects an error of that kind and parameter whose message has `part`, or else names the parameter.
template <class T>
void expect_error(const Result<T>& result, ErrorKind kind, std::string_view param, std::string_view part = "") {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  EXPECT_EQ(result.error().param, param) << result.error().message;
  const std::string_view text = part.empty() ? param : part;
  EXPECT_NE(result.error().message.find(text), std::string::npos) << "no " << text << ": " << result.error().message;
}

// The configuration of a model in tests/golden/models, with some keys changed; null removes one.
Json config_of(const char* model, const Json& changes = Json::object()) {
  Json config = Json::parse(open_fixture(model).config_json);
  config.merge_patch(changes);
  return config;
}

Result<ModelSpec> spec_of(const Json& config, const std::string& generation = "") {
  weights::Checkpoint checkpoint;
  checkpoint.config_json = config.dump();
  checkpoint.generation_config_json = generation;
  return make_spec(checkpoint);
}

Result<ModelSpec> changed(const char* model, const Json& changes) { return spec_of(config_of(model, changes)); }

// Tensors in memory that a test may take away or add to.
class MapSource final : public weights::TensorSource {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, WeightFormat format = WeightFormat::kF32) {
    const weights::FormatInfo& info = weights::format_info(format);
    Tensor tensor{name, format, std::move(shape), {}};
    const auto bytes = static_cast<size_t>(tensor.elements() / info.block_elements * info.block_bytes);
    tensor.data = storage_.emplace_back(bytes, std::byte{0});
    set(std::move(tensor));
  }
  void set(Tensor tensor) {
    remove(tensor.name);
    list_.push_back(std::move(tensor));
  }
  void remove(std::string_view name) {
    std::erase_if(list_, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  const Tensor* find(std::string_view name) const override {
    for (const Tensor& tensor : list_)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }
  std::span<const Tensor> tensors() const override { return list_; }
  Result<const Tensor*> require(std::string_view name) const override {
    if (const Tensor* tensor = find(name)) return tensor;
    return fail(ErrorKind::kCorruptFile, "tensor " + std::string(name) + " is missing", std::string(name));
  }

 private:
  std::deque<std::vector<std::byte>> storage_;
  std::vector<Tensor> list_;
};

// A model of tests/golden/models whose tensors can be changed before it is loaded.
struct Fixture {
  explicit Fixture(std::string_view name) : checkpoint(open_fixture(name)) {
    for (const Tensor& tensor : checkpoint.tensors->tensors()) tensors.set(tensor);
  }
  Result<Model> load(Profile profile = Profile::kBF16) {
    auto spec = make_spec(checkpoint);
    if (!spec) return std::unexpected(spec.error());
    told.clear();
    return load_weights(std::move(*spec), tensors, profile,
                        {allocator, pool, nullptr, [this](double part) { told.push_back(part); }});
  }

  weights::Checkpoint checkpoint;
  MapSource tensors;
  Allocator allocator;
  ThreadPool pool{2};
  std::vector<double> told;  // the progress of the last load
};

TEST(Config, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "3", "{", "{\"a\": 1e999}", "{\"a\": \"\xff\"}", "{} {}"})
    expect_error(HuggingFaceConfig::parse(text, ""), ErrorKind::kCorruptFile, "", "config.json");
  expect_error(HuggingFaceConfig::parse("{}", "[1]"), ErrorKind::kCorruptFile, "", "generation_config.json");
  // In our own words: a library's name for the fault helps nobody.
  for (const char* text : {"", "{", "{\"a\": 1e999}", "{\"a\": \"\xff\"}", "{\"a\": 01}", "{} {}"}) {
    EXPECT_EQ(HuggingFaceConfig::parse(text, "").error().message.find("exception"), std::string::npos) << text;
    EXPECT_EQ(HuggingFaceConfig::parse("{}", std::string(text) + " ").error().message.find("exception"),
              std::string::npos);
  }
}

TEST(Config, RefusesDeepNesting) {
  const auto nested = [](size_t depth) { return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_TRUE(HuggingFaceConfig::parse(nested(32), "").has_value());
  expect_error(HuggingFaceConfig::parse(nested(1000000), ""), ErrorKind::kCorruptFile, "", "nested too deeply");
}

TEST(Config, ReadsTypedValues) {
  const auto config = HuggingFaceConfig::parse(
      R"({"int": 7, "float": 1.5, "text": "x", "null": null, "flag": true, "big": 18446744073709551615,
          "in": {"side": 3}, "list": ["a", "b"], "mixed": ["a", 1]})",
      "");
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->integer("int", 1, 7), 7);
  EXPECT_EQ(config->integer("in/side", 1, 7), 3);
  EXPECT_EQ(config->integer_or("null", 1, 7, 5), 5);
  EXPECT_EQ(config->number("int"), 7.0);
  EXPECT_EQ(config->boolean_or("flag", false), true);
  EXPECT_EQ(config->strings("list"), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(config->has("int/side"));
  expect_error(config->integer("int", 8, 9), ErrorKind::kCorruptFile, "int", "between 8 and 9, not 7");
  expect_error(config->integer("float", 0, 9), ErrorKind::kCorruptFile, "float", "an integer");
  expect_error(config->integer("big", 0, 9), ErrorKind::kCorruptFile, "big");
  expect_error(config->integer("none", 0, 9), ErrorKind::kCorruptFile, "none", "missing");
  expect_error(config->integer_or("text", 0, 9, 1), ErrorKind::kCorruptFile, "text");
  expect_error(config->number("text"), ErrorKind::kCorruptFile, "text");
  expect_error(config->boolean_or("int", false), ErrorKind::kCorruptFile, "int");
  expect_error(config->string_or("int", ""), ErrorKind::kCorruptFile, "int");
  expect_error(config->strings("mixed"), ErrorKind::kCorruptFile, "mixed");
}

TEST(Config, EndTokensAreANumberOrAList) {
  const Json config = config_of("llama_tied", {{"eos_token_id", {7, 9, 7}}});
  EXPECT_EQ(spec_of(config)->end_tokens, (std::vector<TokenId>{7, 9}));
  EXPECT_EQ(spec_of(config, R"({"eos_token_id": 5})")->end_tokens, std::vector<TokenId>{5});
  EXPECT_EQ(spec_of(config, R"({"eos_token_id": null})")->end_tokens, (std::vector<TokenId>{7, 9}));
  EXPECT_EQ(spec_of(config, R"({"eos_token_id": [0, 299]})")->end_tokens, (std::vector<TokenId>{0, 299}));
  for (const char* outside :
       {"-1", "300", "[2, 300]", "2147483648", "4294967295", "18446744073709551615", "-9223372036854775808"}) {
    expect_error(spec_of(config, R"({"eos_token_id": )" + std::string(outside) + "}"), ErrorKind::kCorruptFile,
                 "eos_token_id", "vocabulary of 300");
    Json own = config;
    own["eos_token_id"] = Json::parse(outside);
    expect_error(spec_of(own), ErrorKind::kCorruptFile, "eos_token_id", "vocabulary of 300");
  }
  for (const char* wrong : {R"("2")", "2.5", "true", "{}", "[[2]]", R"([2, "3"])"})
    expect_error(spec_of(config, R"({"eos_token_id": )" + std::string(wrong) + "}"), ErrorKind::kCorruptFile,
                 "eos_token_id");
}

TEST(Spec, RefusesHostileSizes) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
                          "max_position_embeddings", "num_key_value_heads", "head_dim"})
    for (const Json& value : {Json(0), Json(-1), Json(INT64_MIN), Json(1LL << 40), Json(UINT64_MAX), Json("4"),
                              Json(4.0), Json(true), Json::array({4}), Json::object({{"a", 4}})})
      for (const char* model : {"llama_tied", "qwen3", "gemma3"}) {
        SCOPED_TRACE(std::string(model) + " " + key + " " + value.dump());
        // An object would be merged rather than set.
        Json config = config_of(model);
        config[key] = value;
        expect_error(spec_of(config), ErrorKind::kCorruptFile, key);
      }
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
                          "max_position_embeddings", "rms_norm_eps"})
    expect_error(changed("llama_tied", {{key, nullptr}}), ErrorKind::kCorruptFile, key, "missing");
  for (const Json& value : {Json(0), Json(-1e-6), Json(1), Json(1e300), Json(1e-300), Json("1e-6")}) {
    const auto spec = changed("qwen3", {{"rms_norm_eps", value}});
    ASSERT_FALSE(spec.has_value()) << value;
    EXPECT_EQ(spec.error().param, "rms_norm_eps");
  }
}

TEST(Spec, RefusesHeadsThatDoNotFit) {
  expect_error(changed("llama_tied", {{"num_attention_heads", 3}}), ErrorKind::kCorruptFile, "num_key_value_heads",
               "3 query heads");
}

TEST(Spec, RefusesHeadSizesThatNoKernelHas) {
  for (int head_dim : {1, 4, 7, 12, 264, 1024})
    expect_error(changed("qwen3", {{"head_dim", head_dim}}), ErrorKind::kUnsupported, "head_dim");
  // Fewer channels than heads, and no head size of its own, leave nothing for a head.
  expect_error(changed("llama_tied", {{"head_dim", nullptr}, {"hidden_size", 2}}), ErrorKind::kUnsupported, "head_dim",
               "head_dim 0");
  EXPECT_EQ(changed("llama_tied", {{"head_dim", nullptr}})->layers[0].attention().head_dim, 16);
  EXPECT_EQ(changed("qwen3", {{"head_dim", 8}})->layers[0].attention().head_dim, 8);
}

TEST(Spec, RefusesOtherActivations) {
  for (const char* model : {"llama_tied", "qwen3"}) {
    expect_error(changed(model, {{"hidden_act", "gelu"}}), ErrorKind::kUnsupported, "hidden_act", "silu");
    expect_error(changed(model, {{"hidden_act", 1}}), ErrorKind::kCorruptFile, "hidden_act");
    EXPECT_EQ(changed(model, {{"hidden_act", nullptr}})->layers[0].dense().activation, Activation::kSilu);
  }
  expect_error(changed("gemma3", {{"hidden_activation", "gelu"}}), ErrorKind::kUnsupported, "hidden_activation",
               "gelu_pytorch_tanh");
  EXPECT_EQ(changed("gemma3", {{"hidden_activation", nullptr}})->layers[0].dense().activation, Activation::kGeluTanh);
}

TEST(Spec, ReadsBiasesAndCaps) {
  for (const char* model : {"llama_tied", "qwen3", "gemma3"}) {
    const auto spec = changed(model, {{"attention_bias", true}, {"mlp_bias", true}});
    ASSERT_TRUE(spec) << spec.error().message;
    for (const MatrixSpec* matrix : spec->layers[1].matrices())
      for (const MatrixPart& part : matrix->parts)
        EXPECT_EQ(part.bias, part.tensor.substr(0, part.tensor.size() - 6) + "bias");
    expect_error(changed(model, {{"attention_bias", 1}}), ErrorKind::kCorruptFile, "attention_bias");
  }
  EXPECT_FALSE(make_spec(open_fixture("llama_tied"))->layers[0].attention().qkv.parts[0].has_bias());
  for (const char* model : {"gemma2", "gemma3"}) {
    const auto spec = changed(model, {{"attn_logit_softcapping", 30}, {"final_logit_softcapping", 40.0}});
    EXPECT_EQ(spec->layers[2].attention().soft_cap, 30);
    EXPECT_EQ(spec->logit_soft_cap, 40);
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      for (const Json& wrong : {Json(0), Json(-1), Json("30")})
        expect_error(changed(model, {{key, wrong}}), ErrorKind::kCorruptFile, key);
      Json none = config_of(model);
      none[key] = nullptr;
      EXPECT_TRUE(spec_of(none));
      none.erase(key);  // the reference's default is no cap for Gemma 3 alone
      EXPECT_EQ(spec_of(none).has_value(), model == std::string_view("gemma3"));
    }
  }
}

TEST(Spec, RefusesUnknownRopes) {
  const auto rope = [](const Json& changes) { return changed("llama_tied", {{"rope_parameters", changes}}); };
  expect_error(rope({{"rope_type", "spiral"}}), ErrorKind::kUnsupported, "rope_parameters/rope_type", "spiral");
  expect_error(rope({{"rope_type", 3}}), ErrorKind::kCorruptFile, "rope_parameters/rope_type");
  expect_error(rope({{"factor", nullptr}}), ErrorKind::kCorruptFile, "rope_parameters/factor", "missing");
  expect_error(rope({{"factor", 0}}), ErrorKind::kCorruptFile, "rope_parameters/factor", "must be positive");
  expect_error(rope({{"high_freq_factor", 0.5}}), ErrorKind::kCorruptFile, "rope_parameters/high_freq_factor",
               "must be at least low_freq_factor");
  expect_error(rope({{"rope_theta", 1}}), ErrorKind::kCorruptFile, "rope_parameters/rope_theta", "greater than 1");
  const auto old = changed(
      "llama_tied",
      {{"rope_parameters", nullptr}, {"rope_theta", 5000.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}});
  ASSERT_TRUE(old.has_value());
  EXPECT_EQ(old->ropes[0].type, kernels::RopeType::kLinear);
  EXPECT_EQ(old->ropes[0].theta, 5000);
  EXPECT_EQ(old->ropes[0].factor, 4);
}

TEST(Spec, RefusesRopesThatAreNoObjects) {
  const Json wrong[] = {Json(1), Json("linear"), Json::array({Json::object()}), Json(true), Json(1.5)};
  for (const Json& value : wrong) {
    for (const char* model : {"llama_tied", "qwen3", "gemma3"}) {
      SCOPED_TRACE(std::string(model) + " " + value.dump());
      Json config = config_of(model);
      config["rope_parameters"] = value;
      expect_error(spec_of(config), ErrorKind::kCorruptFile, "rope_parameters", "an object");
      config["rope_parameters"] = nullptr;
      config["rope_scaling"] = value;
      expect_error(spec_of(config), ErrorKind::kCorruptFile, "rope_scaling", "an object");
    }
    for (const char* section : {"full_attention", "sliding_attention"}) {
      Json config = config_of("gemma3");
      const std::string key = std::string("rope_parameters/") + section;
      config["rope_parameters"][section] = value;
      expect_error(spec_of(config), ErrorKind::kCorruptFile, key, "an object");
      config["rope_parameters"].erase(section);
      expect_error(spec_of(config), ErrorKind::kCorruptFile, key, "missing");
    }
  }
}

TEST(Spec, RefusesUnknownLayerTypes) {
  for (const char* model : {"qwen3", "gemma3"}) {
    Json types = config_of(model)["layer_types"];
    types.push_back("full_attention");
    expect_error(changed(model, {{"layer_types", types}}), ErrorKind::kCorruptFile, "layer_types");
    types.erase(types.size() - 1);
    types[1] = "linear_attention";
    expect_error(changed(model, {{"layer_types", types}}), ErrorKind::kUnsupported, "layer_types", "linear_attention");
    types[1] = 1;
    expect_error(changed(model, {{"layer_types", types}}), ErrorKind::kCorruptFile, "layer_types");
  }
}

std::vector<int> windows_of(const ModelSpec& spec) {
  std::vector<int> windows;
  for (const auto& layer : spec.layers) windows.push_back(layer.attention().window);
  return windows;
}

TEST(Spec, FindsWindowedLayers) {
  const Json on = {{"use_sliding_window", true}, {"sliding_window", 32}, {"max_window_layers", 3}};
  Json by_type = on;
  by_type["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention",
                            "sliding_attention"};
  EXPECT_EQ(windows_of(*changed("qwen3", by_type)), (std::vector<int>{0, 32, 0, 0, 32}));
  Json by_number = on;
  by_number["layer_types"] = nullptr;
  EXPECT_EQ(windows_of(*changed("qwen3", by_number)), (std::vector<int>{0, 0, 0, 32, 32}));
  EXPECT_EQ(windows_of(*changed("gemma3", {{"layer_types", nullptr}, {"sliding_window_pattern", 2}})),
            (std::vector<int>{16, 0, 16, 0, 16, 0, 16}));
}

TEST(Spec, NamesArchitecturesThatAreKnown) {
  Json config = config_of("llama_tied");
  config["architectures"] = {"MambaForCausalLM"};
  const auto spec = spec_of(config);
  expect_error(spec, ErrorKind::kUnsupported, "architecture", "MambaForCausalLM");
  EXPECT_NE(spec.error().message.find("Qwen3ForCausalLM"), std::string::npos);
  config["architectures"] = Json::array();
  expect_error(spec_of(config), ErrorKind::kCorruptFile, "architectures");
  config.erase("architectures");
  expect_error(spec_of(config), ErrorKind::kCorruptFile, "architectures");
}

TEST(Spec, OfTheFixtures) {
  struct Expected {
    const char* model;
    const char* architecture;
    int layers, q_heads, kv_heads, head_dim, intermediate, vocab;
    bool tied, qk_norm;
    TokenId end;
  };
  for (const Expected& e : {Expected{"llama_tied", "llama", 4, 4, 2, 16, 64, 300, true, false, 2},
                            Expected{"llama_untied", "llama", 6, 4, 2, 16, 64, 300, false, false, 2},
                            Expected{"qwen3", "qwen3", 5, 4, 2, 24, 64, 300, false, true, 2},
                            Expected{"gemma3", "gemma3", 7, 4, 1, 16, 48, 512, true, true, 1},
                            Expected{"gguf/llama_untied.gguf", "llama", 6, 4, 2, 16, 64, 300, false, false, -1},
                            Expected{"gguf/qwen3.gguf", "qwen3", 5, 4, 2, 24, 64, 300, false, true, -1},
                            Expected{"gguf/gemma3.gguf", "gemma3", 7, 4, 1, 16, 48, 512, true, true, -1}}) {
    SCOPED_TRACE(e.model);
    const auto spec = make_spec(open_fixture(e.model));
    ASSERT_TRUE(spec.has_value()) << spec.error().message;
    EXPECT_EQ(spec->architecture, e.architecture);
    EXPECT_EQ(spec->hidden_size, 64);
    EXPECT_EQ(spec->vocab_size, e.vocab);
    EXPECT_EQ(spec->max_positions, 512);
    EXPECT_EQ(spec->tied_head(), e.tied);
    EXPECT_EQ(spec->end_tokens, e.end < 0 ? std::vector<TokenId>{} : std::vector<TokenId>{e.end});
    ASSERT_EQ(spec->layers.size(), static_cast<size_t>(e.layers));
    for (const LayerSpec& layer : spec->layers) {
      const AttentionSpec& a = layer.attention();
      EXPECT_EQ(a.q_heads, e.q_heads);
      EXPECT_EQ(a.kv_heads, e.kv_heads);
      EXPECT_EQ(a.head_dim, e.head_dim);
      EXPECT_EQ(a.qkv.rows(), (e.q_heads + 2 * e.kv_heads) * e.head_dim);
      EXPECT_EQ(a.output.cols, e.q_heads * e.head_dim);
      EXPECT_EQ(a.q_norm.present(), e.qk_norm);
      EXPECT_EQ(layer.dense().size, e.intermediate);
    }
  }
}

TEST(Spec, OfGemma3) {
  for (const char* model : {"gemma3", "gguf/gemma3.gguf"}) {
    SCOPED_TRACE(model);
    const auto spec = make_spec(open_fixture(model));
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(windows_of(*spec), (std::vector<int>{16, 16, 16, 16, 16, 0, 16}));
    EXPECT_EQ(spec->ropes[static_cast<size_t>(spec->layers[5].attention().rope)].theta, 1000000);
    EXPECT_EQ(spec->ropes[static_cast<size_t>(spec->layers[5].attention().rope)].factor, 8);
    EXPECT_EQ(spec->ropes[static_cast<size_t>(spec->layers[0].attention().rope)].theta, 10000);
    EXPECT_EQ(spec->final_norm.offset, model == std::string_view("gemma3") ? 1 : 0);
    EXPECT_TRUE(spec->scale_embeddings);
    EXPECT_TRUE(spec->layers[0].mlp_post_norm.present());
  }
  EXPECT_FLOAT_EQ(make_spec(open_fixture("gemma3"))->layers[0].attention().scale,
                  static_cast<float>(1 / std::sqrt(24.0)));
}

std::string bytes_of_gguf(const std::string& name) {
  std::ifstream in(std::string(QUIRE_TEST_DATA) + "/models/gguf/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Overwrites what follows `offset` bytes behind the first `text`.
void patch(std::string& bytes, std::string_view text, size_t offset, std::string_view with) {
  const size_t at = bytes.find(text);
  if (at == std::string::npos) throw std::runtime_error("no " + std::string(text));
  bytes.replace(at + text.size() + offset, with.size(), with);
}

// Overwrites a 32-bit value, which stands behind its key and its type.
void patch_value(std::string& bytes, std::string_view key, uint32_t value) {
  patch(bytes, key, sizeof(uint32_t), {reinterpret_cast<const char*>(&value), sizeof value});
}

Result<ModelSpec> spec_of_gguf(const std::string& bytes) {
  const weights::TemporaryFolder folder;
  weights::write_file(folder / "model.gguf", bytes);
  auto checkpoint = weights::open_checkpoint(folder / "model.gguf");
  if (!checkpoint) return std::unexpected(checkpoint.error());
  return make_spec(*checkpoint);
}

TEST(Spec, RefusesHostileGgufSizes) {
  const auto patched = [](std::string_view key, uint32_t value) {
    std::string bytes = bytes_of_gguf("random_llama_k.gguf");
    patch_value(bytes, key, value);
    return spec_of_gguf(bytes);
  };
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.context_length"})
    for (uint32_t value : {0U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      SCOPED_TRACE(std::string(key) + " " + std::to_string(value));
      expect_error(patched(key, value), ErrorKind::kCorruptFile, key);
    }
  expect_error(patched("llama.attention.key_length", 32), ErrorKind::kUnsupported, "attention.value_length",
               "different sizes");
  std::string bytes = bytes_of_gguf("random_llama_k.gguf");
  for (const char* key : {"llama.attention.key_length", "llama.attention.value_length"}) patch_value(bytes, key, 4);
  expect_error(spec_of_gguf(bytes), ErrorKind::kUnsupported, "attention.key_length");
}

TEST(Spec, RefusesAnInterleavedRopeOfPartOfAHead) {
  std::string bytes = bytes_of_gguf("llama_untied.gguf");
  patch(bytes, "rope_fre", 0, "xx");  // without its factors, which are of the whole head
  EXPECT_TRUE(spec_of_gguf(bytes).has_value());
  patch_value(bytes, "llama.rope.dimension_count", 8);
  expect_error(spec_of_gguf(bytes), ErrorKind::kUnsupported, "rope.dimension_count", "must be the head size, 16");
}

TEST(Load, ReadsEveryFixture) {
  for (const char* model : {"llama_tied", "llama_untied", "qwen3", "gemma3", "gguf/llama_untied.gguf",
                            "gguf/qwen3.gguf", "gguf/gemma3.gguf"}) {
    SCOPED_TRACE(model);
    Fixture fixture(model);  // outlives the model: its allocator owns the weights
    const auto loaded = fixture.load();
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_EQ(loaded->embedding.has_value(), !loaded->spec.tied_head());
    EXPECT_GT(loaded->weight_bytes, 0U);
    EXPECT_TRUE(std::ranges::is_sorted(fixture.told));
    EXPECT_EQ(std::ranges::count(fixture.told, 1.0), 1);
    EXPECT_EQ(fixture.told.back(), 1.0);
  }
}

// What is planned with before a tensor is read: padding and norms aside it is what loading takes.
TEST(Load, MemoryIsKnownBefore) {
  for (const char* model : {"llama_untied", "gemma3", "llama_w8a8", "gguf/random_llama_k.gguf"}) {
    for (Profile profile : {Profile::kF32, Profile::kBF16, Profile::kQ8}) {
      SCOPED_TRACE(std::string(model) + " " + std::string(name_of(profile)));
      Fixture fixture(model);
      const auto loaded = fixture.load(profile);
      const auto spec = make_spec(fixture.checkpoint);
      ASSERT_TRUE(spec) << spec.error().message;
      if (profile == Profile::kQ8 && default_profile(*spec, fixture.tensors) != Profile::kQ8) {
        EXPECT_FALSE(loaded);  // floats
        continue;
      }
      ASSERT_TRUE(loaded) << loaded.error().message;
      const size_t known = memory_of(loaded->spec, fixture.tensors, profile).all;
      EXPECT_GE(known, loaded->weight_bytes);
      EXPECT_LT(static_cast<double>(known), 1.3 * static_cast<double>(loaded->weight_bytes));
    }
  }
}

// Three matrices of each expert, of rows and inputs that fill whole panels but for padding.
TEST(Load, MemoryOfExpertsIsKnownByItself) {
  Fixture fixture("qwen3_moe");
  const auto spec = make_spec(fixture.checkpoint);
  ASSERT_TRUE(spec) << spec.error().message;
  size_t experts = 0;
  for (const LayerSpec& layer : spec->layers)
    if (const auto* moe = std::get_if<MoeSpec>(&layer.mlp))
      for (const MlpSpec& expert : moe->experts)
        experts +=
            static_cast<size_t>(expert.gate_up.rows() * expert.gate_up.cols + expert.down.rows() * expert.down.cols) *
            4;
  const WeightMemory memory = memory_of(*spec, fixture.tensors, Profile::kF32);
  EXPECT_GT(experts, 0U);
  EXPECT_GE(memory.experts, experts);
  EXPECT_LT(memory.experts, memory.all);
}

TEST(Load, ExpansionsAreKeptAsTheProfileRoundsThem) {
  for (const auto& [profile, dtype] : {std::pair{Profile::kF32, DType::kF32}, {Profile::kBF16, DType::kBF16}}) {
    Fixture fixture("glm4_moe_lite");
    const auto loaded = fixture.load(profile);
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (const LayerWeights& layer : loaded->layers)
      EXPECT_EQ(std::get<LatentWeights>(layer.mixer).expansion.dtype(), dtype);
    EXPECT_GE(memory_of(loaded->spec, fixture.tensors, profile).all, loaded->weight_bytes);
  }
}

TEST(Load, NamesAMissingTensor) {
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
                           "model.layers.2.self_attn.k_proj.weight", "model.layers.4.mlp.down_proj.weight"}) {
    Fixture fixture("qwen3");
    fixture.tensors.remove(name);
    expect_error(fixture.load(), ErrorKind::kCorruptFile, name, "tensor " + std::string(name) + " is missing");
  }
}

TEST(Load, NamesATensorOfAnotherShape) {
  const std::pair<const char*, std::vector<int64_t>> cases[] = {{"model.embed_tokens.weight", {299, 64}},
                                                                {"model.norm.weight", {65}},
                                                                {"model.norm.weight", {1, 64}},
                                                                {"model.layers.1.self_attn.q_norm.weight", {16}},
                                                                {"model.layers.2.self_attn.k_proj.weight", {64, 48}},
                                                                {"model.layers.4.mlp.down_proj.weight", {64}},
                                                                {"lm_head.weight", {300, 64, 1}}};
  for (const auto& [name, shape] : cases) {
    Fixture fixture("qwen3");
    fixture.tensors.add(name, shape);
    expect_error(fixture.load(), ErrorKind::kCorruptFile, name, "tensor " + std::string(name) + " is [");
  }
}

TEST(Load, RefusesAQuantisedNorm) {
  Fixture fixture("qwen3");
  fixture.tensors.add("model.norm.weight", {64}, WeightFormat::kQ8_0);
  expect_error(fixture.load(), ErrorKind::kUnsupported, "model.norm.weight");
}

TEST(Load, RefusesATensorBesideThoseOfTheModel) {
  const auto refused = [](const char* model, const char* name) {
    Fixture fixture(model);
    fixture.tensors.add(name, {64});
    expect_error(fixture.load(), ErrorKind::kUnsupported, name);
  };
  for (const char* name : {"blk.0.attn_q.bias", "blk.5.attn_output.bias", "blk.3.attn_sinks.weight",
                           "blk.1.ffn_gate_inp.weight", "output.bias", "output_norm.bias", "token_embd.bias"})
    refused("gguf/llama_untied.gguf", name);
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.4.self_attn.sinks", "lm_head.bias",
                           "model.layers.1.input_layernorm.bias", "model.norm.bias"})
    refused("qwen3", name);
  refused("llama_tied", "model.layers.3.self_attn.q_norm.weight");
}

TEST(Load, RefusesLayersThatTheConfigurationLeavesOut) {
  const auto refused = [](const char* model, const std::string& name) {
    Fixture fixture(model);
    fixture.tensors.add(name, {64});
    expect_error(fixture.load(), ErrorKind::kCorruptFile, name, "belongs to a layer");
  };
  for (const char* number : {"5", "6", "40", "99999999999999999999"}) {
    const std::string layer = "model.layers." + std::string(number) + ".";
    for (const char* name : {"mlp.up_proj.weight", "self_attn.q_proj.bias", "eh_proj.weight"})
      refused("qwen3", layer + name);
  }
  refused("gguf/llama_untied.gguf", "blk.6.nextn.eh_proj.weight");
  // The same file with its number of layers lowered.
  Fixture fixture("llama_tied");
  Json config = Json::parse(fixture.checkpoint.config_json);
  for (int layers = config["num_hidden_layers"].get<int>() - 1; layers > 0; --layers) {
    config["num_hidden_layers"] = layers;
    fixture.checkpoint.config_json = config.dump();
    const auto loaded = fixture.load();
    ASSERT_FALSE(loaded.has_value()) << layers;
    EXPECT_NE(loaded.error().message.find("says " + std::to_string(layers) + " layers"), std::string::npos)
        << loaded.error().message;
    // They are not taken for layers that predict further ahead, which hold a matrix of their own.
    config["num_nextn_predict_layers"] = 4 - layers;
    fixture.checkpoint.config_json = config.dump();
    EXPECT_FALSE(fixture.load().has_value()) << layers;
    fixture.tensors.add("model.layers." + std::to_string(layers) + ".eh_proj.weight", {64});
    EXPECT_TRUE(fixture.load().has_value()) << layers;
    config.erase("num_nextn_predict_layers");
  }
}

TEST(Load, PassesOverTensorsThatChangeNothing) {
  Fixture hugging_face("llama_tied");
  const auto digest = hugging_face.load()->digest;
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layersx.9.up_proj.bias",
                           "model.layers.mixer.bias", "lm_head.weight", "vision_tower.layers.0.bias", "x"})
    hugging_face.tensors.add(name, {8});
  const auto loaded = hugging_face.load();
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(loaded->digest, digest);

  Fixture gguf("gguf/llama_untied.gguf");  // holds rope_freqs.weight
  for (const char* name : {"blk.0.attn_rot_embd"}) gguf.tensors.add(name, {8});
  EXPECT_TRUE(gguf.load().has_value());
}

TEST(Load, ProfileQ8NeedsAQuantisedCheckpoint) {
  for (const char* model : {"llama_tied", "gguf/qwen3.gguf"})
    expect_error(Fixture(model).load(Profile::kQ8), ErrorKind::kUnsupported, "dtype", "bfloat16 or float32");
  for (const char* model : {"gguf/random_llama_k.gguf", "gguf/random_gemma3_mixed.gguf"}) {
    Fixture fixture(model);
    const auto loaded = fixture.load(Profile::kQ8);
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  }
}

}  // namespace
}  // namespace quire::model
