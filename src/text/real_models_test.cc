// The tokenizers of the two real models, against llama.cpp. Needs QUIRE_MODEL_DIR with smollm2.gguf and gemma3.gguf.
#include <gtest/gtest.h>

#include <cstdlib>

#include "text/detokenizer.h"
#include "text/load.h"
#include "text/test_data.h"

namespace quire::text {
namespace {

struct RealModel {
  std::string name;
  std::vector<TokenId> around_empty;  // what encoding "" gives
  bool has_template;
};

class RealTokenizer : public testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("QUIRE_MODEL_DIR");
    if (folder == nullptr) GTEST_SKIP() << "QUIRE_MODEL_DIR is not set";
    auto file = weights::GgufFile::open(std::filesystem::path(folder) / (GetParam().name + ".gguf"));
    ASSERT_TRUE(file.has_value()) << why(file);
    auto text = load_text(**file);
    ASSERT_TRUE(text.has_value()) << why(text);
    ASSERT_TRUE(text->has_value());
    text_ = std::move(**text);
    vectors_ = read_json(golden(GetParam().name + ".json"));
  }

  std::optional<ModelText> text_;
  nlohmann::ordered_json vectors_;
};

TEST_P(RealTokenizer, AgreesWithLlamaCpp) {
  const Tokenizer& tokenizer = text_->tokenizer;
  ASSERT_GT(vectors_["vectors"].size(), 200U);
  for (const auto& vector : vectors_["vectors"]) {
    const auto text = vector["text"].get<std::string>();
    const auto plain = vector["llamacpp_plain"].get<std::vector<TokenId>>();
    const auto special =
        vector.contains("llamacpp_special") ? vector["llamacpp_special"].get<std::vector<TokenId>>() : plain;
    EXPECT_EQ(encoded(tokenizer, text, {.add_special = false, .parse_special = false}), plain) << text;
    EXPECT_EQ(encoded(tokenizer, text, {.add_special = false, .parse_special = true}), special) << text;
    EXPECT_EQ(decoded(tokenizer, special, false), vector.value("llamacpp_detok_special", text));
  }
  check_incremental(tokenizer, vectors_["incremental"]);
}

TEST_P(RealTokenizer, KnowsItsSpecialTokensAndTemplate) {
  EXPECT_EQ(encoded(text_->tokenizer, "", {}), GetParam().around_empty);
  EXPECT_EQ(text_->chat_template.has_value(), GetParam().has_template);
  ASSERT_TRUE(text_->tokenizer.special_ids().eos.has_value());
  EXPECT_EQ(std::ranges::count(text_->tokenizer.end_tokens(), *text_->tokenizer.special_ids().eos), 1);
}

TEST_P(RealTokenizer, PromptsOfTheGoldenRuns) {
  const auto runs = read_json(std::filesystem::path(QUIRE_TEST_DATA) / "models" /
                              (GetParam().name == "smollm2" ? "real_smollm2" : "real_gemma3_270m") / "golden.json");
  ASSERT_GT(runs["prompts"].size(), 0U);
  for (const auto& prompt : runs["prompts"]) {
    if (!prompt.contains("text")) continue;
    EXPECT_EQ(
        encoded(text_->tokenizer, prompt["text"].get<std::string>(), {.add_special = true, .parse_special = true}),
        prompt["ids"].get<std::vector<TokenId>>());
    EXPECT_EQ(decoded(text_->tokenizer, prompt["greedy_ids"].get<std::vector<TokenId>>(), false),
              prompt["greedy_text"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer,
                         testing::Values(RealModel{"smollm2", {}, true}, RealModel{"gemma3", {2}, false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire::text
