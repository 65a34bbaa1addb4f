#include "model/open_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/load.h"
#include "model/tensor_names.h"
#include "weights/test_files.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;
using weights::QuantisationScheme;
using Layout = QuantisationScheme::Layout;

Result<std::vector<QuantisationScheme>> schemes_of(const Json& quantization) {
  const auto config = HuggingFaceConfig::parse(Json{{"quantization_config", quantization}}.dump(), "");
  EXPECT_TRUE(config) << config.error().message;
  return quantisation_schemes(*config);
}

// With some keys of a sound section changed; null removes one.
Result<std::vector<QuantisationScheme>> schemes_of(Json section, const Json& changes) {
  section.merge_patch(changes);
  return schemes_of(section);
}

const Json kAwq = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemm"}};
const Json kGptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}};
const Json kFp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 64}}};
const Json kInt4 = {{"num_bits", 4}, {"type", "int"}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 64}};
const Json kInt8 = {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}};

Json compressed(const char* format, const Json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

std::string text_of(const Result<std::vector<QuantisationScheme>>& schemes) {
  if (!schemes) return schemes.error().message;
  std::string text;
  for (const auto& scheme : *schemes)
    text += (text.empty() ? "" : "; ") + describe(scheme) + (scheme.zeros_less_one ? ", zeros less one" : "");
  return text;
}

TEST(QuantisationSchemes, FollowTheConfiguration) {
  EXPECT_EQ(text_of(schemes_of(kAwq)), "AWQ, 4 bits, with zero points, groups of 128");
  EXPECT_EQ(text_of(schemes_of({{"quant_method", "AWQ"}, {"w_bit", 4}, {"q_group_size", -1}, {"version", "GEMM"}})),
            "AWQ, 4 bits, with zero points, a scale for each output");
  EXPECT_EQ(text_of(schemes_of(kGptq)), "GPTQ, 4 bits, symmetric, groups of 128, zeros less one");
  EXPECT_EQ(text_of(schemes_of(kGptq, {{"checkpoint_format", "gptq_v2"}, {"sym", false}, {"bits", 8}})),
            "GPTQ, 8 bits, with zero points, groups of 128");
  EXPECT_EQ(text_of(schemes_of(kFp8)), "float-quantized, blocks of 128 x 64");
  EXPECT_EQ(text_of(schemes_of(kFp8, {{"weight_block_size", nullptr}})), "float-quantized, one scale");
  EXPECT_EQ(text_of(schemes_of({{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}})), "MXFP4");
  EXPECT_EQ(text_of(schemes_of(compressed("pack-quantized", kInt4))),
            "pack-quantized, 4 bits, with zero points, groups of 64");
  EXPECT_EQ(text_of(schemes_of(compressed("int-quantized", kInt8))),
            "int-quantized, 8 bits, symmetric, a scale for each output");
  EXPECT_EQ(text_of(schemes_of(compressed("naive-quantized", {{"num_bits", 8}, {"type", "float"}}))),
            "float-quantized, one scale");
  EXPECT_EQ(text_of(schemes_of(compressed("int-quantized", {{"num_bits", 8}, {"group_size", 32}}))),
            "int-quantized, 8 bits, symmetric, groups of 32");
}

TEST(QuantisationSchemes, ThereMayBeSeveralOrNone) {
  Json mixed = compressed("mixed-precision", kInt4);
  mixed["config_groups"]["group_0"]["format"] = "pack-quantized";
  mixed["config_groups"]["group_1"] = {{"format", "int-quantized"}, {"weights", kInt8}};
  Json many = mixed;
  for (int i = 0; i < 64; ++i) many["config_groups"]["more_" + std::to_string(i)] = many["config_groups"]["group_0"];
  mixed["config_groups"]["attention"] = {{"weights", nullptr}, {"input_activations", {{"num_bits", 8}}}};
  EXPECT_EQ(text_of(schemes_of(mixed)),
            "pack-quantized, 4 bits, with zero points, groups of 64; "
            "int-quantized, 8 bits, symmetric, a scale for each output");
  const auto refused = schemes_of(many);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("config_groups is of 66 groups"), std::string::npos)
      << refused.error().message;
  for (const char* text : {"{}", R"({"quantization_config": null})"}) {
    const auto schemes = quantisation_schemes(*HuggingFaceConfig::parse(text, ""));
    ASSERT_TRUE(schemes);
    EXPECT_TRUE(schemes->empty());
  }
}

TEST(QuantisationSchemes, RefuseByTheKeyWhatIsNotComputed) {
  const Json int4 = compressed("pack-quantized", kInt4);
  const auto weights = [&](const Json& changes) {
    return Json{{"config_groups", {{"group_0", {{"weights", changes}}}}}};
  };
  const std::string group = "config_groups/group_0", in_group = group + "/weights";
  const struct {
    Json section, changes;
    std::string key;
    const char* part;  // of the message
  } cases[] = {
      {kAwq, {{"quant_method", "bitsandbytes"}}, "quant_method", "awq or gptq or compressed-tensors or fp8"},
      {kAwq, {{"quant_method", nullptr}}, "quant_method", "missing"},
      {kAwq, {{"quant_method", 4}}, "quant_method", "a string"},
      {kAwq, {{"bits", 8}}, "bits", "must be 4"},
      {kAwq, {{"bits", nullptr}}, "w_bit", "missing"},
      {kAwq, {{"group_size", 0}}, "group_size", "-1 or a multiple of 32"},
      {kAwq, {{"group_size", 48}}, "group_size", "-1 or a multiple of 32"},
      {kAwq, {{"group_size", -2}}, "group_size", "between -1"},
      {kAwq, {{"group_size", 1e9}}, "group_size", "an integer"},
      {kAwq, {{"version", "gemv"}}, "version", "must be gemm"},
      {kAwq, {{"zero_point", false}}, "zero_point", "must be true"},
      {kGptq, {{"bits", 3}}, "bits", "must be 4 or 8"},
      {kGptq, {{"sym", "yes"}}, "sym", "true or false"},
      {kGptq, {{"checkpoint_format", "marlin"}}, "checkpoint_format", "gptq or gptq_v2"},
      {kGptq, {{"pack_dtype", "int16"}}, "pack_dtype", "int32"},
      {kGptq, {{"dynamic", {{"+:.*", {{"bits", 8}}}}}}, "dynamic", "the same bits"},
      {kGptq, {{"is_marlin_format", true}}, "is_marlin_format", "order of GPTQ"},
      {kFp8, {{"fmt", "e5m2"}}, "fmt", "e4m3"},
      {kFp8, {{"weight_block_size", {128}}}, "weight_block_size", "two sizes"},
      {kFp8, {{"weight_block_size", {128, 0}}}, "weight_block_size", "between 1"},
      {kFp8, {{"weight_block_size", 128}}, "weight_block_size", "a list of integers"},
      {int4, {{"format", "nvfp4-pack-quantized"}}, "format", "pack-quantized or int-quantized"},
      {int4, {{"format", nullptr}}, group + "/format", "pack-quantized or int-quantized"},
      {int4, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}, "sparsity_config/format", "dense"},
      {int4, {{"transform_config", {{"config_groups", {{"v", 1}}}}}}, "transform_config", "not transformed"},
      {int4, {{"config_groups", nullptr}}, "config_groups", "missing"},
      {int4, {{"config_groups", {"W4A16"}}}, "config_groups", "an object"},
      {int4, {{"config_groups", {{"group_0", {"Linear"}}}}}, group, "an object"},
      {int4, {{"config_groups", {{"group_0", {{"weights", nullptr}}}}}}, "config_groups", "without weights"},
      {int4, weights({{"num_bits", 3}}), in_group + "/num_bits", "4 or 8"},
      {int4, weights({{"type", "float"}}), in_group + "/type", "must be int"},
      {int4, weights({{"strategy", "block"}}), in_group + "/strategy", "integers"},
      {int4, weights({{"strategy", "tensor_group"}}), in_group + "/strategy", "tensor or channel"},
      {int4, weights({{"group_size", nullptr}}), in_group + "/group_size", "a multiple of 32"},
      {int4, weights({{"group_size", 16}}), in_group + "/group_size", "a multiple of 32"},
      {compressed("float-quantized", {{"num_bits", 8}, {"type", "float"}}), weights({{"symmetric", false}}),
       in_group + "/symmetric", "true for floats"},
      {compressed("float-quantized", {{"num_bits", 8}, {"type", "float"}}), weights({{"num_bits", 4}}),
       in_group + "/num_bits", "must be 8"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.changes.dump());
    const auto schemes = schemes_of(c.section, c.changes);
    ASSERT_FALSE(schemes) << text_of(schemes);
    EXPECT_EQ(schemes.error().param, "quantization_config/" + c.key);
    for (const std::string& part : {schemes.error().param, std::string(c.part)})
      EXPECT_NE(schemes.error().message.find(part), std::string::npos) << part << " in: " << schemes.error().message;
  }
}

// What says how activations are quantised, and what only tells how the file came to be, changes no weight.
TEST(QuantisationSchemes, IgnoreWhatDoesNotConcernWeights) {
  const Json notes = {{"desc_act", true},   {"static_groups", false},       {"dynamic", Json::object()},
                      {"adapter", nullptr}, {"meta", {{"quantizer", "x"}}}, {"is_marlin_format", false}};
  EXPECT_EQ(text_of(schemes_of(kGptq, notes)), text_of(schemes_of(kGptq)));
  Json int8 = compressed("int-quantized", kInt8);
  int8["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}, {"dynamic", false}, {"strategy", "tensor"}};
  int8["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_EQ(text_of(schemes_of(int8)), text_of(schemes_of(compressed("int-quantized", kInt8))));
}

std::string model_path(std::string_view name) { return std::string(QUIRE_TEST_DATA) + "/models/" + std::string(name); }

TEST(OpenCheckpoint, HandsOutQuantisedMatricesAsTensors) {
  const struct {
    const char* model;
    const char* matrix;  // model.layers.0.mlp.up_proj.weight
    Profile profile;
  } cases[] = {{"llama_untied", "[64, 64] BF16", Profile::kBF16},
               {"llama_awq", "[64, 64] Q5_0", Profile::kQ8},
               {"qwen3_packed", "[64, 64] Q5_0", Profile::kQ8},
               {"llama_w8a8", "[64, 64] Q8_0", Profile::kQ8},
               {"gemma3_fp8", "[48, 64] BF16", Profile::kBF16}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.model);
    const auto checkpoint = open_checkpoint(model_path(c.model));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const auto matrix = checkpoint->tensors->require("model.layers.0.mlp.up_proj.weight");
    ASSERT_TRUE(matrix) << matrix.error().message;
    EXPECT_EQ(describe(**matrix), c.matrix);
    EXPECT_EQ(checkpoint->quantisation.empty(), std::string_view(c.model) == "llama_untied");
    const auto spec = make_spec(*checkpoint);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_TRUE(check_names(*spec, *checkpoint->tensors));
    EXPECT_EQ(default_profile(*spec, *checkpoint->tensors), c.profile);
  }
}

// A section and tensors that contradict each other.
TEST(OpenCheckpoint, ConfigurationAndTensorsMustAgree) {
  const weights::TemporaryFolder folder;
  const auto open_with = [&](const char* tensors, const Json& changes) {
    Json config = Json::parse(std::ifstream(model_path(tensors) + "/config.json"));
    config.merge_patch(changes);
    weights::write_file(folder / "config.json", config.dump());
    std::filesystem::copy_file(model_path(tensors) + "/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    return open_checkpoint(folder.path());
  };
  weights::expect_error(open_with("llama_untied", {{"quantization_config", kAwq}}), ErrorKind::kCorruptFile,
                        {"AWQ", "no tensor's name ends with .qweight"});
  weights::expect_error(open_with("llama_awq", {{"quantization_config", {{"group_size", 64}}}}),
                        ErrorKind::kCorruptFile, {".scales", "groups of 64"});
  weights::expect_error(open_with("llama_awq", {{"quantization_config", compressed("pack-quantized", kInt4)}}),
                        ErrorKind::kCorruptFile, {".qweight", "pack-quantized"});
  for (const char* quantised : {"llama_awq", "llama_w8a8", "gemma3_fp8", "gpt_oss_mxfp4"})
    weights::expect_error(open_with(quantised, {{"quantization_config", nullptr}}), ErrorKind::kCorruptFile,
                          {"a quantised matrix", "config.json has no quantization_config"});
}

}  // namespace
}  // namespace quire::model
