// Online quantisation through the whole engine: what it makes of a checkpoint, and how it is told apart.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "support/core_harness.h"

namespace quire::test {
namespace {

std::string tiny(const std::string& name) { return std::string(QUIRE_TEST_DATA) + "/models/" + name; }

EngineOptions options_of(const std::string& name, Quantization quantization = Quantization::kNone,
                         LmHeadQuantization head = LmHeadQuantization::kAuto) {
  EngineOptions options;
  options.model = tiny(name);
  options.quantization = quantization;
  options.lm_head_quantization = head;
  options.kv_cache_bytes = size_t{16} << 20;
  options.threads = 1;
  return options;
}

std::vector<Request> requests() {
  std::vector<Request> list;
  for (int length : {1, 33, 70}) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((i * 37 + length) % 250);
    list.push_back(greedy(std::move(prompt), 8));
    list.back().sampling.prompt_logprobs = 0;
  }
  return list;
}

std::vector<Answer> answers_of(const EngineOptions& options) { return CoreHarness(options).run(requests()); }

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ASSERT_EQ(got[i].tokens, want[i].tokens);
    ASSERT_EQ(got[i].logits.size(), want[i].logits.size());
    ASSERT_GE(want[i].logits.size(), 8U);
    for (const auto& [position, logits] : want[i].logits)
      ASSERT_EQ(std::memcmp(got[i].logits.at(position).data(), logits.data(), logits.size() * sizeof(float)), 0)
          << "position " << position;
  }
}

ModelInfo info_of(const EngineOptions& options) {
  CoreHarness harness(options);
  return harness.core().info();
}

// The file has the folder's weights, its matrices rounded to Q8_0 by the gguf package.
TEST(Quantisation, Int8GivesTheBitsOfAFileThatAnotherProgramQuantised) {
  for (std::optional<Profile> profile :
       {std::optional<Profile>(), std::optional(Profile::kBF16), std::optional(Profile::kF32)}) {
    EngineOptions online = options_of("qwen3", Quantization::kInt8), file = options_of("gguf/qwen3_q8_0.gguf");
    online.profile = file.profile = profile;
    expect_same(answers_of(online), answers_of(file));
  }
}

TEST(Quantisation, ThreadsDoNotChangeIt) {
  for (Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
    EngineOptions options = options_of("gemma3", quantization);
    const auto want = answers_of(options);
    const std::string fingerprint = info_of(options).fingerprint;
    options.threads = 2;
    expect_same(answers_of(options), want);
    EXPECT_EQ(info_of(options).fingerprint, fingerprint);
  }
}

// A head alone keeps its integers where all else is bf16: as it does in q8, where floats are bf16 too.
TEST(Quantisation, AnInt8HeadLeavesTheLayersInBF16) {
  for (const char* model : {"qwen3", "gemma3"}) {  // a head of its own; a tied one
    EngineOptions head = options_of(model, Quantization::kNone, LmHeadQuantization::kInt8), native = head;
    EXPECT_EQ(info_of(head).profile, Profile::kBF16);
    native.profile = Profile::kQ8;
    const auto got = answers_of(head);
    expect_same(got, answers_of(native));
    const auto plain = answers_of(options_of(model));
    EXPECT_NE(got[1].logits.at(5), plain[1].logits.at(5));
    EXPECT_LT(info_of(head).weight_bytes, info_of(options_of(model)).weight_bytes);
  }
}

TEST(Quantisation, EveryMethodHasAFingerprintOfItsOwn) {
  std::set<std::string> seen;
  int methods = 0;
  for (Quantization layers : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
    for (LmHeadQuantization head : {LmHeadQuantization::kNone, LmHeadQuantization::kInt8}) {
      const EngineOptions options = options_of("qwen3", layers, head);
      seen.insert(info_of(options).fingerprint);
      EXPECT_EQ(info_of(options).fingerprint, info_of(options).fingerprint);
      ++methods;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(methods));
  for (Quantization layers : {Quantization::kInt8, Quantization::kInt4}) {  // auto: int8
    EXPECT_EQ(info_of(options_of("qwen3", layers)).fingerprint,
              info_of(options_of("qwen3", layers, LmHeadQuantization::kInt8)).fingerprint);
    EXPECT_EQ(info_of(options_of("qwen3", layers)).profile, Profile::kQ8);
  }
  // In bf16 the head's integers are kept, or rounded away.
  EngineOptions widened = options_of("qwen3", Quantization::kInt8), kept = widened;
  kept.lm_head_quantization = LmHeadQuantization::kInt8;
  widened.profile = kept.profile = Profile::kBF16;
  EXPECT_NE(info_of(widened).fingerprint, info_of(kept).fingerprint);
}

void expect_refused(const EngineOptions& options, const std::string& option, const std::string& part) {
  const auto loaded = engine::LoadedModel::load(options);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(loaded.error().param, option);
  EXPECT_NE(loaded.error().message.find(part), std::string::npos) << loaded.error().message;
}

TEST(Quantisation, RefusesWhatIsQuantisedInTheFile) {
  for (Quantization quantization : {Quantization::kInt8, Quantization::kInt4})
    expect_refused(options_of("gguf/random_llama_k.gguf", quantization), "quantization",
                   "tensor blk.0.attn_v.weight is [128, 256] Q6_K in the file");
  expect_refused(options_of("gguf/qwen3_q8_0.gguf", Quantization::kNone, LmHeadQuantization::kInt8),
                 "lm_head_quantization", "tensor output.weight is [300, 64] Q8_0 in the file");
  EngineOptions q8 = options_of("qwen3");
  q8.profile = Profile::kQ8;
  expect_refused(q8, "dtype", "or quantization int8 or int4");
}

// A file that is quantised in part: what floats it has become int8 or int4, the rest stays as it is.
TEST(Quantisation, TakesTheFloatsOfAMixedFile) {
  const EngineOptions plain = options_of("gguf/random_gemma3_mixed.gguf");
  EngineOptions int8 = options_of("gguf/random_gemma3_mixed.gguf", Quantization::kInt8);
  EngineOptions int4 = int8;
  int4.quantization = Quantization::kInt4;
  EXPECT_LT(info_of(int8).weight_bytes, info_of(plain).weight_bytes);
  EXPECT_LT(info_of(int4).weight_bytes, info_of(int8).weight_bytes);
  const std::set<std::string> fingerprints = {info_of(plain).fingerprint, info_of(int8).fingerprint,
                                              info_of(int4).fingerprint};
  EXPECT_EQ(fingerprints.size(), 3U);
  std::set<std::vector<float>> logits;
  for (const EngineOptions& options : {plain, int8, int4}) logits.insert(answers_of(options)[1].logits.at(32));
  EXPECT_EQ(logits.size(), 3U);
}

// FP8 is BF16 once read: rows that are made are quantised like rows of a file.
TEST(Quantisation, TakesWhatIsBF16OnceRead) {
  const EngineOptions plain = options_of("gemma3_fp8"), int8 = options_of("gemma3_fp8", Quantization::kInt8);
  EXPECT_LT(info_of(int8).weight_bytes, info_of(plain).weight_bytes);
  EXPECT_NE(info_of(int8).fingerprint, info_of(plain).fingerprint);
  const auto want = answers_of(plain), got = answers_of(int8);
  double moved = 0, size = 0;
  for (size_t t = 0; t < want[1].logits.at(32).size(); ++t) {
    moved += std::pow(static_cast<double>(want[1].logits.at(32)[t]) - static_cast<double>(got[1].logits.at(32)[t]), 2);
    size += std::pow(static_cast<double>(want[1].logits.at(32)[t]), 2);
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(std::sqrt(moved / size), 0.15);
}

}  // namespace
}  // namespace quire::test
