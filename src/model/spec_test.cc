#include "model/spec.h"

#include <gtest/gtest.h>

namespace quire::model {
namespace {

AttentionSpec attention(const std::string& name) {
  AttentionSpec a;
  a.name = name;
  a.q_heads = 4;
  a.kv_heads = 2;
  a.head_dim = 16;
  a.qkv = {{{"q", 64}, {"k", 32}, {"v", 32}}, 64};
  return a;
}

// Two layers that keep their own, the second with a window, and one that reads the first.
ModelSpec shared() {
  ModelSpec spec;
  for (const char* name : {"a", "b", "c"}) spec.layers.emplace_back().attention() = attention(name);
  spec.layers[1].attention().window = 8;
  AttentionSpec& reader = spec.layers[2].attention();
  reader.donor = "a";
  reader.qkv.parts.resize(1);
  return spec;
}

std::string refusal(void (*change)(ModelSpec&)) {
  ModelSpec spec = shared();
  change(spec);
  const auto result = validate(spec);
  if (result) return "accepted";
  EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
  return result.error().message;
}

TEST(ModelSpec, SharedLayersReadAnEarlierOneOfTheSameShape) {
  EXPECT_TRUE(validate(shared()));
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[2].attention().donor = "x"; }).find("no earlier layer"),
            std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[2].attention().donor = "c"; }).find("no earlier layer"),
            std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[2].attention().donor = "b"; }).find("window"), std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[2].attention().kv_heads = 4; }).find("kv heads"), std::string::npos);
  EXPECT_NE(
      refusal(+[](ModelSpec& s) { s.layers[2].attention().qkv = s.layers[0].attention().qkv; }).find("of its own"),
      std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) {
              s.layers[1] = s.layers[2];
              s.layers[1].attention().name = "b";
              s.layers[2].attention().donor = "b";
            }).find("keeps nothing"),
            std::string::npos);
}

TEST(ModelSpec, NamesAndMasksMustBePossible) {
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[1].attention().name = "a"; }).find("two layers"), std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[1].attention().chunk = 16; }).find("both"), std::string::npos);
}

}  // namespace
}  // namespace quire::model
