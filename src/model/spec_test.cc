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

TEST(ModelSpec, GatesAreRowsBehindKeysAndValues) {
  const auto message = refusal(+[](ModelSpec& s) { s.layers[0].attention().gated = true; });
  EXPECT_NE(message.find("128 rows instead of 192: q, k, v, gates"), std::string::npos) << message;
}

TEST(ModelSpec, NamesAndMasksMustBePossible) {
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[1].attention().name = "a"; }).find("two layers"), std::string::npos);
  EXPECT_NE(refusal(+[](ModelSpec& s) { s.layers[1].attention().chunk = 16; }).find("both"), std::string::npos);
}

// One latent layer with an indexer.
ModelSpec latent() {
  ModelSpec spec;
  LatentSpec l;
  l.name = "a";
  l.shape = {.heads = 2, .nope_dim = 8, .rope_dim = 4, .value_dim = 8, .rank = 16};
  l.query_rank = 12;
  l.query_norm = {"q_norm", 12};
  l.rope = 0;
  spec.ropes.push_back({.rotary_dim = 4});
  PooledIndexSpec& index = l.indexer.emplace();
  index.keys_name = "a.keys";
  index.ring_name = "a.ring";
  index.shape = {.pool = 4, .heads = 2, .dim = 8, .top_k = 16};
  l.input = {{{"in", 12 + 16 + 4}, {"index", 8 + 8 + 2}}, 64};
  l.query = {{{"q", 2 * 12}, {"index_q", 2 * 8}}, 12};
  spec.layers.emplace_back().mixer = l;
  return spec;
}

TEST(ModelSpec, LatentLayersMakeWhatTheirShapesSay) {
  EXPECT_TRUE(validate(latent()));
  const struct {
    void (*change)(LatentSpec&);
    const char* says;
  } cases[] = {{+[](LatentSpec& l) { l.input.parts.pop_back(); }, "32 rows instead of 50"},
               {+[](LatentSpec& l) { l.query.parts.pop_back(); }, "24 rows of queries, not 40"},
               {+[](LatentSpec& l) { l.query.cols = 13; }, "from 13 numbers, not from 12"},
               {+[](LatentSpec& l) { l.query_norm = {}; }, "norm for narrow queries alone"},
               {+[](LatentSpec& l) { l.query_rank = 0; }, "no narrow queries"},
               {+[](LatentSpec& l) { l.rope = -1; }, "no rope"},
               {+[](LatentSpec& l) { l.rope = 1; }, "rope 1 of 1"},
               {+[](LatentSpec& l) {
                  l.shape.rope_dim = 2;
                  l.input.parts[0].rows -= 2;
                  l.query.parts[0].rows -= 4;
                },
                "turns 4 of 2 dimensions"},
               {+[](LatentSpec& l) {
                  l.shape.rope_dim = 0;
                  l.input.parts[0].rows -= 4;
                  l.query.parts[0].rows -= 8;
                },
                "no dimensions for it"},
               {+[](LatentSpec& l) { l.shape.rank = 0; }, "latent rank"},
               {+[](LatentSpec& l) { l.indexer->shape.top_k = 18; }, "multiple of the pool"},
               {+[](LatentSpec& l) { l.indexer->ring_name = "a"; }, "two layers are called a"},
               {+[](LatentSpec& l) { l.indexer->rope = 1; }, "rope 1 of 1"},
               {+[](LatentSpec& l) { l.indexer->shape.pool = 1; }, "50 rows instead of 42"},
               {+[](LatentSpec& l) { l.reads_last_choice = true; }, "what another one chose"}};
  for (const auto& c : cases) {
    ModelSpec spec = latent();
    c.change(std::get<LatentSpec>(spec.layers[0].mixer));
    const auto result = validate(spec);
    ASSERT_FALSE(result) << c.says;
    EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(result.error().message.find(c.says), std::string::npos) << result.error().message;
  }
}

TEST(ModelSpec, AnEarlierIndexerChoosesForLayersWithoutOne) {
  ModelSpec spec = latent();
  LatentSpec l = std::get<LatentSpec>(spec.layers[0].mixer);
  l.name = "b";
  l.indexer.reset();
  l.input.parts.pop_back();
  l.query.parts.pop_back();
  l.reads_last_choice = true;
  spec.layers.emplace_back().mixer = l;
  EXPECT_TRUE(validate(spec));
  std::swap(spec.layers[0], spec.layers[1]);
  const auto first = validate(spec);
  ASSERT_FALSE(first);
  EXPECT_NE(first.error().message.find("there is none"), std::string::npos) << first.error().message;
}

// One layer of the gated delta rule with narrow gates, and two residual streams.
ModelSpec streams() {
  ModelSpec spec;
  spec.hidden_size = 64;
  spec.streams = {2, 20, 1e-6F};
  GatedDeltaSpec g;
  g.name = "a";
  g.shape = {.heads = 2, .key_heads = 2, .key_dim = 8, .value_dim = 16, .conv_width = 4, .decay_floor = -5};
  g.gate_rank = 12;
  g.input = {{{"in", 2 * 16 + 32 + 12 + 12 + 2}}, 64};
  g.z = {{{"z", 32}}, 12};
  g.a = {{{"a", 16}}, 12};
  g.conv = {{"q", 16}, {"k", 16}, {"v", 32}};
  LayerSpec& layer = spec.layers.emplace_back();
  layer.mixer = g;
  layer.attention_streams = {{{{"scores", 8}}, 128}, "scale", "bias"};
  layer.mlp_streams = layer.attention_streams;
  return spec;
}

TEST(ModelSpec, StreamsAndNarrowGatesFitTheirModel) {
  EXPECT_TRUE(validate(streams()));
  EXPECT_EQ(streams().layers[0].matrices().size(), 6U);
  const struct {
    void (*change)(ModelSpec&, GatedDeltaSpec&);
    const char* says;
  } cases[] = {
      {+[](ModelSpec&, GatedDeltaSpec& g) { g.input.parts[0].rows--; }, "89 rows instead of q, k, v, z"},
      {+[](ModelSpec&, GatedDeltaSpec& g) { g.a.parts[0].rows = 2; }, "32 and 2 rows of gates, not 32 and 16"},
      {+[](ModelSpec&, GatedDeltaSpec& g) { g.shape.decay_floor = 0; }, "32 and 16 rows of gates, not 32 and 2"},
      {+[](ModelSpec&, GatedDeltaSpec& g) { g.z.cols = 13; }, "from 13 and 12 numbers, not from 12"},
      {+[](ModelSpec&, GatedDeltaSpec& g) { g.conv.pop_back(); }, "over 32 channels, not over 64"},
      {+[](ModelSpec& s, GatedDeltaSpec&) { s.streams.reset(); }, "where the model does"},
      {+[](ModelSpec& s, GatedDeltaSpec&) { s.layers[0].mlp_streams.reset(); }, "where the model does"},
      {+[](ModelSpec& s, GatedDeltaSpec&) { s.streams->count = 3; }, "8 scores of 128 numbers for 3"},
      {+[](ModelSpec& s, GatedDeltaSpec&) { s.streams->iterations = 0; }, "iterations"},
      {+[](ModelSpec& s, GatedDeltaSpec&) { s.layers[0].mlp_post_norm = {"norm", 64}; }, "norms behind"}};
  for (const auto& c : cases) {
    ModelSpec spec = streams();
    c.change(spec, std::get<GatedDeltaSpec>(spec.layers[0].mixer));
    const auto result = validate(spec);
    ASSERT_FALSE(result) << c.says;
    EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(result.error().message.find(c.says), std::string::npos) << result.error().message;
  }
}

// Queries without a narrow layer are rows of the input, and nothing else makes any.
TEST(ModelSpec, LatentLayersMayMakeQueriesAtOnce) {
  ModelSpec spec = latent();
  auto& l = std::get<LatentSpec>(spec.layers[0].mixer);
  l.indexer.reset();
  l.query_rank = 0;
  l.query_norm = {};
  l.input = {{{"q", 2 * 12}, {"latent", 16 + 4}}, 64};
  EXPECT_FALSE(validate(spec));
  l.query = {};
  EXPECT_TRUE(validate(spec));
  EXPECT_EQ(spec.layers[0].matrices().size(), 4U);
}

}  // namespace
}  // namespace quire::model
