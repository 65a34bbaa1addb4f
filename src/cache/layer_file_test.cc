#include "cache/layer_file.h"

#include <gtest/gtest.h>

namespace quire::cache {
namespace {

std::string file_of(std::string_view layer) {
  return R"({"max_model_len": 4096, "layers": [)" + std::string(layer) + "]}";
}

CacheSpec spec_of(std::string_view layer) {
  const auto file = parse_layer_file(file_of(layer), 32);
  EXPECT_TRUE(file) << file.error().message;
  return file ? file->layers.at(0).spec : CacheSpec{};
}

std::string error_of(std::string_view text) {
  const auto file = parse_layer_file(text, 32);
  return file ? "accepted" : file.error().message;
}

TEST(LayerFile, RepeatsLayersInOrder) {
  const auto file = parse_layer_file(
      R"({"max_model_len": 131072, "layers": [
          {"count": 18, "kind": "sliding_window", "window": 128, "num_kv_heads": 8, "head_size": 64},
          {"count": 18, "kind": "full", "num_kv_heads": 8, "head_size": 64}]})",
      16);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->max_model_len, 131072);
  ASSERT_EQ(file->layers.size(), 36U);
  EXPECT_EQ(file->layers[17].name, "layers.17");
  EXPECT_EQ(file->layers[17].spec,
            (CacheSpec{.retention = SlidingWindow{.window = 128}, .num_kv_heads = 8, .state_bytes = 256}));
  EXPECT_EQ(file->layers[35].spec, (CacheSpec{.num_kv_heads = 8, .state_bytes = 256}));
}

TEST(LayerFile, KnowsEveryKind) {
  EXPECT_EQ(spec_of(R"({"head_size": 64, "value_head_size": 32, "dtype": "f32"})"),
            (CacheSpec{.dtype = DType::kF32, .block_size = 32, .state_bytes = 384}));
  EXPECT_EQ(spec_of(R"({"kind": "chunked_local", "chunk": 64, "head_size": 8, "dtype": "i8", "block_size": 64})"),
            (CacheSpec{.retention = ChunkedLocal{64}, .dtype = DType::kI8, .block_size = 64, .state_bytes = 16}));
  EXPECT_EQ(spec_of(R"({"latent": true, "head_size": 576, "tokens_per_state": 4})"),
            (CacheSpec{.storage = Storage::kLatent, .block_size = 32, .state_bytes = 1152, .tokens_per_state = 4}));
  EXPECT_EQ(spec_of(R"({"kind": "circular_buffer", "block_size": 8, "state_bytes": 100})"),
            (CacheSpec{.retention = CircularBuffer{}, .block_size = 8, .state_bytes = 100, .prefix_cacheable = false}));
  EXPECT_EQ(spec_of(R"({"kind": "recurrent", "state_bytes": 1000})"),
            (CacheSpec{.storage = Storage::kState,
                       .retention = RecurrentState{.checkpoints = RecurrentState::Checkpoints::kAlign},
                       .block_size = 32,
                       .state_bytes = 1000}));
  EXPECT_EQ(spec_of(R"({"kind": "recurrent", "state_bytes": 1000, "checkpoints": false})").retention,
            Retention(RecurrentState{}));
}

TEST(LayerFile, SaysWhatIsWrong) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "malformed JSON at byte 1"},
      {file_of(R"({"latent": true, "head_size": 8, "value_head_size": 8})"), "\"value_head_size\" is not for latent"},
      {file_of(R"({"latent": true, "head_size": 8, "num_kv_heads": 8})"), "\"num_kv_heads\" must be 1"},
      {file_of(R"({"kind": "recurrent", "state_bytes": 8, "num_kv_heads": 2})"), "\"num_kv_heads\" must be 1"},
      {file_of(R"({"kind": "recurrent", "state_bytes": 8, "latent": true})"), "\"latent\" is not for"},
      {file_of(R"({"kind": "recurrent", "state_bytes": 8, "tokens_per_state": 2})"), "\"tokens_per_state\" is not for"},
      {file_of(R"({"kind": "circular_buffer", "state_bytes": 8})"), "\"block_size\" is missing"},
      {file_of(R"({"state_bytes": 8, "value_head_size": 8})"), "both \"state_bytes\" and \"value_head_size\""},
      {R"({"max_model_len": 2147483648, "layers": [{"head_size": 1}]})", "integer from 1 to 16777216"},
      {"[]", "must be a JSON object"},
      {R"({"layers": [{"head_size": 8}]})", "\"max_model_len\" must be an integer"},
      {R"({"max_model_len": -1, "layers": [{"head_size": 8}]})", "\"max_model_len\" must be an integer"},
      {R"({"max_model_len": 18446744073709551615, "layers": []})", "\"max_model_len\" must be an integer"},
      {R"({"max_model_len": 10})", "\"layers\" must be a list"},
      {R"({"max_model_len": 10, "layers": []})", "\"layers\" must be a list"},
      {R"({"max_model_len": 10, "layers": [{"head_size": 8}], "x": 1})", "unknown key \"x\""},
      {file_of("3"), "layers[0] must be an object"},
      {file_of(R"({"head_size": 8}, {})"), "layers[1]: \"head_size\" is missing"},
      {file_of(R"({"head_size": 8, "heads": 2})"), "unknown key \"heads\""},
      {file_of(R"({"head_size": 8.5})"), "\"head_size\" must be an integer from 1"},
      {file_of(R"({"head_size": 9223372036854775807})"), "\"head_size\" must be an integer from 1"},
      {file_of(R"({"head_size": 8, "state_bytes": 8})"), "both \"state_bytes\" and \"head_size\""},
      {file_of(R"({"head_size": 8, "count": 5000})"), "\"count\" must be"},
      {file_of(R"({"head_size": 8, "count": 4096}, {"head_size": 8})"), "more than 4096 layers"},
      {file_of(R"({"head_size": 8, "kind": "window"})"), "not \"window\""},
      {file_of(R"({"head_size": 8, "kind": 3})"), "\"kind\" must be a string"},
      {file_of(R"({"head_size": 8, "kind": "sliding_window"})"), "\"window\" is missing"},
      {file_of(R"({"head_size": 8, "window": 128})"), "\"window\" is for \"kind\": \"sliding_window\" alone"},
      {file_of(R"({"head_size": 8, "kind": "sliding_window", "window": 8, "chunk": 8})"), "\"chunk\" is for"},
      {file_of(R"({"head_size": 8, "checkpoints": true})"), "\"checkpoints\" is for"},
      {file_of(R"({"head_size": 8, "kind": "recurrent"})"), "\"state_bytes\" is missing"},
      {file_of(R"({"head_size": 8, "head_size": 9})"), "stands twice"},
      {file_of(R"({"head_size": 1e999})"), "out of range"},
      {file_of(R"({"head_size": [[[[8]]]]})"), "nested"},
      {file_of(R"({"head_size": 8, "latent": 1})"), "\"latent\" must be true or false"},
      {file_of(R"({"head_size": 8, "dtype": "fp4"})"), "not \"fp4\""},
      {file_of(R"({"head_size": 8, "tokens_per_state": 3})"), "multiple of tokens_per_state"},
      {file_of(R"({"state_bytes": 4294967296, "num_kv_heads": 65536})"), "state_bytes"},
  };
  for (const auto& c : cases)
    EXPECT_NE(error_of(c.text).find(c.message), std::string::npos) << c.text << ": " << error_of(c.text);
}

}  // namespace
}  // namespace quire::cache
