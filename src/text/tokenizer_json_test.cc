#include <gtest/gtest.h>

#include "text/detokenizer.h"
#include "text/test_data.h"

namespace quire::text {

void check_incremental(const Tokenizer& tokenizer, const nlohmann::ordered_json& vectors) {
  for (const auto& vector : vectors) {
    const auto ids = vector["ids"].get<std::vector<TokenId>>();
    const auto expected = vector["text_after_each_token"].get<std::vector<std::string>>();
    ASSERT_EQ(expected.size(), ids.size() + 1);
    DetokenizeStream stream(tokenizer, {.skip_special = false});
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      text += stream.push(ids[i]);
      EXPECT_EQ(text, expected[i]) << "after token " << i;
    }
    text += stream.flush();
    EXPECT_EQ(text, expected.back());
  }
}

namespace {

Tokenizer load(const std::string& name) {
  auto tokenizer = Tokenizer::from_json(read_file(golden(name + "/tokenizer.json")));
  EXPECT_TRUE(tokenizer.has_value()) << why(tokenizer);
  return std::move(*tokenizer);
}

class HubFixture : public testing::TestWithParam<std::string> {};

TEST_P(HubFixture, VectorsAgree) {
  const Tokenizer tokenizer = load(GetParam());
  const auto golden_vectors = read_json(golden(GetParam() + "/vectors.json"));
  EXPECT_EQ(tokenizer.vocab_size(), golden_vectors["vocab_size"].get<int32_t>());
  ASSERT_GT(golden_vectors["vectors"].size(), 200U);
  for (const auto& vector : golden_vectors["vectors"]) {
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<std::vector<TokenId>>();
    const auto ids_with_special = vector["ids_with_special"].get<std::vector<TokenId>>();
    EXPECT_EQ(encoded(tokenizer, text, {.add_special = false, .parse_special = true}), ids) << text;
    EXPECT_EQ(encoded(tokenizer, text, {.add_special = true, .parse_special = true}), ids_with_special) << text;
    EXPECT_EQ(decoded(tokenizer, ids, false), vector["decode"].get<std::string>());
    EXPECT_EQ(decoded(tokenizer, ids_with_special, true), vector["decode_skip_special"].get<std::string>());
  }
  check_incremental(tokenizer, golden_vectors["incremental"]);
}

TEST_P(HubFixture, NamesFindTheirIds) {
  const Tokenizer tokenizer = load(GetParam());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    ASSERT_TRUE(tokenizer.contains(id));
    EXPECT_EQ(tokenizer.find(tokenizer.name(id)), id);
  }
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, HubFixture, testing::Values("tok_bytelevel_300", "tok_spm_bpe_512", "tok_unigram_320"));

TEST(HubTokenizer, SpecialTokensAreTextUnlessAskedFor) {
  const Tokenizer tokenizer = load("tok_bytelevel_300");
  const TokenId end = *tokenizer.find("<|im_end|>");
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_EQ(encoded(tokenizer, "<|im_end|>", {.add_special = false, .parse_special = true}), std::vector{end});
  const auto literal = encoded(tokenizer, "<|im_end|>", {.add_special = false, .parse_special = false});
  EXPECT_GT(literal.size(), 1U);
  EXPECT_EQ(std::ranges::count(literal, end), 0);
  EXPECT_EQ(decoded(tokenizer, literal, true), "<|im_end|>");
  EXPECT_EQ(decoded(tokenizer, {end}, true), "");
  EXPECT_EQ(decoded(tokenizer, {end}, false), "<|im_end|>");
}

TEST(HubTokenizer, IdsOutOfRangeAreErrors) {
  const Tokenizer tokenizer = load("tok_bytelevel_300");
  for (const TokenId id : {-1, 300, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer.contains(id));
    EXPECT_EQ(tokenizer.name(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
    const auto text = tokenizer.decode(std::vector{id}, true);
    ASSERT_FALSE(text.has_value());
    EXPECT_EQ(text.error().kind, ErrorKind::kInvalidRequest);
    EXPECT_NE(text.error().message.find(std::to_string(id)), std::string::npos);
    DetokenizeStream stream(tokenizer, {});
    EXPECT_EQ(stream.push(id) + stream.flush(), "");
  }
}

TEST(HubTokenizer, TextThatIsNotUtf8IsAnError) {
  const Tokenizer tokenizer = load("tok_bytelevel_300");
  for (const std::string_view text : {"ab\xff", "\xed\xa0\x80", "\xc3"}) {
    const auto ids = tokenizer.encode(text, {});
    ASSERT_FALSE(ids.has_value());
    EXPECT_EQ(ids.error().kind, ErrorKind::kInvalidRequest);
  }
}

TEST(HubTokenizer, TruncationAndPaddingOfTheFileAreIgnored) {
  auto file = read_json(golden("tok_bytelevel_300/tokenizer.json"));
  file["truncation"] = {{"direction", "Right"}, {"max_length", 4}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 64}}},
                     {"direction", "Right"},
                     {"pad_to_multiple_of", nullptr},
                     {"pad_id", 0},
                     {"pad_type_id", 0},
                     {"pad_token", "<|endoftext|>"}};
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "0123456789", {.add_special = false}).size(), 10U);
}

TEST(HubTokenizer, DropoutOfTheFileIsIgnored) {
  auto file = read_json(golden("tok_bytelevel_300/tokenizer.json"));
  file["model"]["dropout"] = 0.5;
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  const std::string text = "the weather in there is whether they think";
  const auto expected = encoded(load("tok_bytelevel_300"), text, {});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(encoded(*tokenizer, text, {}), expected);
}

TEST(HubTokenizer, IdsThatAPostProcessorMakesUpAreErrors) {
  auto file = read_json(golden("tok_bytelevel_300/tokenizer.json"));
  file["post_processor"] = nlohmann::ordered_json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
      "special_tokens": {"X": {"id": "X", "ids": [4000000000], "tokens": ["X"]}}})");
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_TRUE(tokenizer->encode("a", {.add_special = false}).has_value());
  const auto ids = tokenizer->encode("a", {.add_special = true});
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().kind, ErrorKind::kCorruptFile);
  EXPECT_NE(ids.error().message.find("4000000000"), std::string::npos);
}

TEST(HubTokenizer, APanicInTheLibraryIsAnError) {
  auto file = read_json(golden("tok_bytelevel_300/tokenizer.json"));
  file["pre_tokenizer"] = {{"type", "FixedLength"}, {"length", 0}};
  const auto tokenizer = Tokenizer::from_json(file.dump());
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  const auto ids = tokenizer->encode("abc", {});
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().kind, ErrorKind::kInternal);
}

TEST(HubTokenizer, BadFilesAreErrors) {
  const std::string good = read_file(golden("tok_bytelevel_300/tokenizer.json"));
  std::vector<std::string> bad = {
      "", "{", "[]", "{}", "null", "{\"model\":null}", "\xff\xfe", std::string(100000, '[')};
  for (const char* drop : {"\"type\": \"ByteLevel\"", "\"content\": \"<|im_end|>\"", "\"decoder\":", "{", "["}) {
    std::string spoiled = good;
    ASSERT_NE(spoiled.find(drop), std::string::npos) << drop;
    bad.push_back(spoiled.replace(spoiled.find(drop), 1, ""));
  }
  for (size_t cut = 1; cut < good.size(); cut += good.size() / 37) bad.push_back(good.substr(0, cut));

  auto file = nlohmann::ordered_json::parse(good);
  const auto with = [&file](const char* pointer, const nlohmann::ordered_json& value) {
    auto changed = file;
    changed[nlohmann::ordered_json::json_pointer(pointer)] = value;
    return changed.dump();
  };
  bad.push_back(with("/model/merges", {"not a merge of this vocabulary"}));
  bad.push_back(with("/model/vocab", nlohmann::ordered_json::object()));
  bad.push_back(with("/model/type", "NoSuchModel"));
  bad.push_back(with("/pre_tokenizer",
                     {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}, {"invert", false}}));
  bad.push_back(with("/model/vocab/far", 4000000000U));
  bad.push_back(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}));
  bad.push_back(with("/decoder", nullptr));
  bad.push_back(with("/decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}));
  for (const std::string& json : bad) {
    const auto tokenizer = Tokenizer::from_json(json);
    ASSERT_FALSE(tokenizer.has_value()) << json.substr(0, 200);
    EXPECT_NE(tokenizer.error().kind, ErrorKind::kInternal) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message, "");
  }
}

}  // namespace
}  // namespace quire::text
