#include "model/architectures/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "model/spec.h"

namespace quire::model {
namespace {

using Json = nlohmann::json;

Json read_vectors() {
  std::ifstream in(std::string(QUIRE_TEST_DATA) + "/model/rope.json");
  return Json::parse(in);
}

HuggingFaceConfig parse(const Json& config) { return std::move(*HuggingFaceConfig::parse(config.dump(), "")); }

// A model with that rope alone, of the length that its configuration says.
ModelSpec model_of(kernels::RopeParameters rope, const Json& config) {
  ModelSpec spec;
  spec.max_positions = config["max_position_embeddings"].get<int64_t>();
  spec.ropes.push_back(std::move(rope));
  return spec;
}

// tests/golden/generate/rope.py says where the vectors come from.
TEST(Rope, EqualsTheReferencesFormulasForEverySpelling) {
  std::set<kernels::RopeType> types;
  for (const Json& vector : read_vectors()) {
    SCOPED_TRACE(vector["name"].get<std::string>());
    const HuggingFaceConfig config = parse(vector["config"]);
    auto rope = hugging_face_rope(config, vector["section"].get<std::string>(), vector["head_dim"].get<int>(), 10000);
    ASSERT_TRUE(rope) << rope.error().message;
    types.insert(rope->type);
    ModelSpec spec = model_of(std::move(*rope), vector["config"]);
    if (!vector["longest"].is_null()) set_longest(spec, vector["longest"].get<int64_t>());
    Allocator memory;
    auto table = kernels::RopeTable::make(spec.ropes[0], 16, memory);
    ASSERT_TRUE(table) << table.error().message;

    EXPECT_NEAR(spec.ropes[0].attention_factor, vector["attention_factor"].get<double>(), 1e-15);
    const auto inverse = kernels::rope_inverse_frequencies(spec.ropes[0]);
    ASSERT_EQ(inverse.size(), vector["inverse"].size());
    for (size_t i = 0; i < inverse.size(); ++i)
      EXPECT_NEAR(inverse[i] / vector["inverse"][i].get<double>(), 1, 1e-14) << i;
    if (vector["section"].get<std::string>().empty()) {
      const auto softmax = yarn_softmax_factor(config);
      ASSERT_TRUE(softmax);
      EXPECT_NEAR(*softmax, vector["softmax_factor"].get<double>(), 1e-15);
    }
  }
  EXPECT_EQ(types.size(), 5U);
}

TEST(Rope, LengthsThatAFlagAllows) {
  const Json config = {{"max_position_embeddings", 2048}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}};
  const auto length = [&](int64_t flag) {
    ModelSpec spec = model_of(*hugging_face_rope(parse(config), "", 64, 10000), config);
    set_longest(spec, flag);
    return std::pair(spec.max_positions, spec.ropes[0].longest);
  };
  EXPECT_EQ(length(100), std::pair(int64_t{2048}, 100.0));
  EXPECT_EQ(length(5000), std::pair(int64_t{5000}, 5000.0));
  EXPECT_EQ(length(1 << 20), std::pair(int64_t{8192}, 8192.0));

  ModelSpec spec =
      model_of({.type = kernels::RopeType::kDynamic, .factor = 1e300, .original_max_position = 2048}, config);
  set_longest(spec, 1 << 20);
  EXPECT_EQ(spec.max_positions, 1 << 20);
}

TEST(Rope, NamesTheKeyAtFault) {
  struct Case {
    Json rope;
    ErrorKind kind;
    const char* key;
  };
  const Json list = {1.0, 1.0, 1.0, 1.0};
  const auto corrupt = ErrorKind::kCorruptFile, unsupported = ErrorKind::kUnsupported;
  for (const auto& [rope, kind, key] : {
           Case{{{"rope_type", "spiral"}}, unsupported, "rope_type"},
           Case{{{"rope_type", 3}}, corrupt, "rope_type"},
           Case{{{"rope_type", "linear"}, {"factor", 2.0}, {"alpha", 1000}}, unsupported, "alpha"},
           Case{{{"rope_type", "linear"}}, corrupt, "factor"},
           Case{{{"rope_type", "dynamic"}, {"factor", 0}}, corrupt, "factor"},
           Case{{{"rope_type", "yarn"}, {"factor", -1}}, corrupt, "factor"},
           Case{{{"rope_type", "yarn"}, {"factor", 2}, {"truncate", 1}}, corrupt, "truncate"},
           Case{{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", "32"}}, corrupt, "beta_fast"},
           Case{{{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}, corrupt, "attention_factor"},
           Case{{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}},
                corrupt,
                "original_max_position_embeddings"},
           Case{{{"rope_type", "longrope"}, {"long_factor", list}}, corrupt, "short_factor"},
           Case{{{"rope_type", "longrope"}, {"long_factor", {1.0}}, {"short_factor", list}}, corrupt, "long_factor"},
           Case{{{"rope_type", "longrope"}, {"long_factor", {1, 1, 1, 0}}, {"short_factor", list}},
                corrupt,
                "long_factor"},
           Case{{{"rope_type", "longrope"}, {"long_factor", {1, 1, "1", 1}}, {"short_factor", list}},
                corrupt,
                "long_factor"},
           Case{{{"rope_type", "default"}, {"partial_rotary_factor", 0.45}}, corrupt, "partial_rotary_factor"},
           Case{{{"rope_type", "default"}, {"partial_rotary_factor", 1.5}}, corrupt, "partial_rotary_factor"},
           Case{{{"rope_type", "default"}, {"partial_rotary_factor", 0}}, corrupt, "partial_rotary_factor"},
           Case{{{"rope_type", "default"}, {"rope_theta", 0.5}}, corrupt, "rope_theta"},
           Case{{{"rope_type", "default"}, {"factor", 4.0}}, unsupported, "factor"},
           Case{{{"factor", 4.0}}, unsupported, "factor"},
       }) {
    SCOPED_TRACE(rope.dump());
    const std::string full = std::string("rope_parameters/") + key;
    const auto read =
        hugging_face_rope(parse({{"max_position_embeddings", 64}, {"rope_parameters", rope}}), "", 8, 1e4);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, kind) << read.error().message;
    EXPECT_EQ(read.error().param, full) << read.error().message;
    EXPECT_NE(read.error().message.find(full), std::string::npos) << read.error().message;
  }
}

// As transformers' convert_rope_params_to_dict: the base beside it counts only where the section has none.
TEST(Rope, TakesTheBaseOfAnOldSection) {
  Json config = {{"max_position_embeddings", 64},
                 {"rope_theta", 5000.0},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 20000.0}}}};
  EXPECT_EQ(hugging_face_rope(parse(config), "", 8, 1e4)->theta, 20000);
  config["rope_scaling"].erase("rope_theta");
  EXPECT_EQ(hugging_face_rope(parse(config), "", 8, 1e4)->theta, 5000);
  config["rope_scaling"] = {{"rope_type", "default"}, {"factor", 1.0}};
  EXPECT_TRUE(hugging_face_rope(parse(config), "", 8, 1e4));
}

TEST(Rope, BoundsWhatTheSoftmaxIsMultipliedWith) {
  const auto factor = [](double all_dim) {
    return yarn_softmax_factor(
        parse({{"max_position_embeddings", 64},
               {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale_all_dim", all_dim}}}}));
  };
  EXPECT_NEAR(*factor(1), std::pow(0.1 * std::log(4.0) + 1, 2), 1e-12);
  for (double wrong : {1e5, 1e300, -10.0, -1e300}) {
    ASSERT_FALSE(factor(wrong)) << wrong;
    EXPECT_EQ(factor(wrong).error().param, "rope_scaling/mscale_all_dim");
  }
}

TEST(Rope, RefusesWhatStandsBesideSectionsOfLayerTypes) {
  Json config = {{"max_position_embeddings", 64}, {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}};
  EXPECT_TRUE(hugging_face_rope(parse(config), "full_attention", 8, 1e4));
  config["rope_parameters"]["factor"] = 2.0;
  const auto read = hugging_face_rope(parse(config), "full_attention", 8, 1e4);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().param, "rope_parameters/factor");
}

}  // namespace
}  // namespace quire::model
