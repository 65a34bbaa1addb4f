#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "fmt/core.h"
#include "text/detokenizer.h"
#include "text/test_data.h"

namespace quire::text {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;
constexpr int32_t kByte = 6;

// Metadata with the strings that it points to.
struct Metadata {
  std::string model;
  std::string pre;
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  std::vector<std::string> merges;
  GgufTokenizerData keys;  // ids and choices

  TokenId add(std::string text, int32_t type = kNormal, float score = 0) {
    tokens.push_back(std::move(text));
    types.push_back(type);
    scores.push_back(score);
    return static_cast<TokenId>(tokens.size()) - 1;
  }
  Result<Tokenizer> make() const {
    GgufTokenizerData data = keys;
    data.model = model;
    data.pre = pre;
    data.tokens.assign(tokens.begin(), tokens.end());
    data.merges.assign(merges.begin(), merges.end());
    data.scores = scores;
    data.token_types = types;
    return Tokenizer::from_gguf(data);
  }
};

// A tokenizer.json fixture as a converter would write it into a GGUF file.
Metadata converted(const std::string& name, const std::string& model) {
  const auto file = read_json(golden(name + "/tokenizer.json"));
  Metadata data;
  data.model = model;
  size_t count = file["model"]["vocab"].size();
  for (const auto& token : file["added_tokens"]) count = std::max(count, token["id"].get<size_t>() + 1);
  data.tokens.resize(count);
  data.types.assign(count, kNormal);
  data.scores.assign(count, -1e6F);
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    data.tokens[id.get<size_t>()] = token;
    if (token.size() == 6 && token.starts_with("<0x")) data.types[id.get<size_t>()] = kByte;
  }
  for (const auto& token : file["added_tokens"]) {
    data.tokens[token["id"].get<size_t>()] = token["content"];
    data.types[token["id"].get<size_t>()] = kControl;
  }
  for (const auto& merge : file["model"]["merges"]) {
    const auto left = merge[0].get<std::string>();
    const auto right = merge[1].get<std::string>();
    const size_t joined = file["model"]["vocab"][left + right].get<size_t>();
    data.scores[joined] = std::max(data.scores[joined], -static_cast<float>(data.merges.size()));
    data.merges.push_back(left + " " + right);
  }
  return data;
}

void check_against_hub(const Tokenizer& tokenizer, const std::string& name) {
  const auto vectors = read_json(golden(name + "/vectors.json"));
  for (const auto& vector : vectors["vectors"]) {
    const auto text = vector["text"].get<std::string>();
    EXPECT_EQ(encoded(tokenizer, text, {.add_special = false, .parse_special = true}),
              vector["ids"].get<std::vector<TokenId>>())
        << text;
    EXPECT_EQ(decoded(tokenizer, vector["ids"].get<std::vector<TokenId>>(), false),
              vector["decode"].get<std::string>());
  }
  check_incremental(tokenizer, vectors["incremental"]);
}

TEST(GgufTokenizer, ByteLevelAgreesWithTheHubFile) {
  Metadata data = converted("tok_bytelevel_300", "gpt2");
  data.pre = "qwen2";
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  check_against_hub(*tokenizer, "tok_bytelevel_300");
  // <|endoftext|> and <|im_end|> end a generation whatever else the file says.
  EXPECT_EQ(tokenizer->end_tokens(), (std::vector<TokenId>{0, 2}));
}

TEST(GgufTokenizer, SentencePieceAgreesWithTheHubFile) {
  Metadata data = converted("tok_spm_bpe_512", "llama");
  data.keys.bos = 2;
  data.keys.add_space_prefix = false;
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  check_against_hub(*tokenizer, "tok_spm_bpe_512");
  EXPECT_EQ(encoded(*tokenizer, "", {}), std::vector<TokenId>{2});
}

TEST(GgufTokenizer, AddedSpaceGoesBeforeEachStretchOfTextAndComesOffAgain) {
  Metadata data = converted("tok_spm_bpe_512", "llama");
  data.keys.bos = 2;
  data.keys.eos = 1;
  data.keys.add_eos = true;
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(tokenizer->leading_space(), LeadingSpace::kDropOne);
  const EncodeOptions options{.add_special = true, .parse_special = true};
  const auto ids = encoded(*tokenizer, "Hello<end_of_turn>Hello", options);
  EXPECT_EQ(decoded(*tokenizer, ids, false), "<bos> Hello<end_of_turn> Hello<eos>");
  EXPECT_EQ(decoded(*tokenizer, ids, true), "Hello Hello");
  EXPECT_EQ(ids.front(), 2);
  EXPECT_EQ(ids.back(), 1);
}

Metadata sentence_piece() {
  Metadata data;
  data.model = "llama";
  data.add("<unk>", kUnknown);
  data.add("<s>", kControl);
  data.add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) data.add(fmt::format("<0x{:02X}>", byte), kByte);
  data.keys.add_bos = false;
  data.keys.add_space_prefix = false;
  return data;
}

TEST(GgufTokenizer, ScoresOrderTheMerges) {
  Metadata data = sentence_piece();
  const TokenId a = data.add("a", kNormal, -10);
  const TokenId b = data.add("b", kNormal, -11);
  const TokenId ab = data.add("ab", kNormal, -2);
  const TokenId ba = data.add("ba", kNormal, -1);
  const TokenId aa = data.add("aa", kNormal, -2);
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "aba", {}), (std::vector{a, ba}));
  // Equal scores: the leftmost pair first.
  EXPECT_EQ(encoded(*tokenizer, "aab", {}), (std::vector{aa, b}));
  EXPECT_EQ(encoded(*tokenizer, "abb", {}), (std::vector{ab, b}));
}

TEST(GgufTokenizer, CharactersWithoutATokenBecomeBytes) {
  Metadata data = sentence_piece();
  const TokenId a = data.add("a");
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "aé", {}), (std::vector{a, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(decoded(*tokenizer, {a, 3 + 0xC3, 3 + 0xA9}, false), "aé");
  EXPECT_EQ(decoded(*tokenizer, {a, 3 + 0xC3, a}, false),
            "a\xEF\xBF\xBD"
            "a");
}

TEST(GgufTokenizer, TextNeverBecomesAControlOrByteToken) {
  Metadata data = sentence_piece();
  for (const char* text : {"<", "s", ">", "<s", "0x41>", "</", "/"}) data.add(text);
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  for (const std::string text : {"<s>", "</s>", "<0x41>", "<unk>"}) {
    const auto ids = encoded(*tokenizer, text, {.parse_special = false});
    EXPECT_EQ(decoded(*tokenizer, ids, true), text);
  }
  EXPECT_EQ(encoded(*tokenizer, "<s>", {.parse_special = true}), std::vector<TokenId>{1});
}

TEST(GgufTokenizer, UserDefinedRunsTakeTheLongest) {
  Metadata data = sentence_piece();
  data.add("▁");
  const TokenId two = data.add("  ", kUserDefined);
  const TokenId three = data.add("   ", kUserDefined);
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "     ", {}), (std::vector{three, two}));
  EXPECT_EQ(decoded(*tokenizer, {three, two}, true), "     ");
}

TEST(GgufTokenizer, WholePiecesSkipTheMergesWhereThePreTokenizerSaysSo) {
  Metadata data = converted("tok_bytelevel_300", "gpt2");
  const TokenId word = data.add("zebra");  // no merges lead here
  data.pre = "qwen2";
  auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_GT(encoded(*tokenizer, "zebra", {}).size(), 1U);
  data.pre = "llama-bpe";
  data.keys.bos = 1;
  tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "zebra", {}), (std::vector<TokenId>{1, word}));
}

TEST(GgufTokenizer, HarmonyMessagesDoNotEndAtEnd) {
  Metadata data = sentence_piece();
  const TokenId end = data.add("<|end|>", kControl);
  const TokenId stop = data.add("<|return|>", kControl);
  const TokenId call = data.add("<|call|>", kControl);
  const auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(std::ranges::count(tokenizer->end_tokens(), end), 0);
  EXPECT_EQ(tokenizer->end_tokens(), (std::vector<TokenId>{2, stop, call}));
}

TEST(GgufTokenizer, WhatDoesNotFitIsAnErrorThatNamesIt) {
  struct Case {
    std::string names;
    std::function<void(Metadata&)> spoil;
    ErrorKind kind = ErrorKind::kCorruptFile;
    bool byte_level = true;
  };
  const std::vector<Case> cases = {
      {"no-such-pre", [](Metadata& m) { m.pre = "no-such-pre"; }, ErrorKind::kUnsupported},
      {"bert", [](Metadata& m) { m.model = "bert"; }, ErrorKind::kUnsupported},
      {"tokens has 0", [](Metadata& m) { m.tokens.clear(); }},
      {"token_type has 299", [](Metadata& m) { m.types.pop_back(); }},
      {"same text at 7 and 9", [](Metadata& m) { m.tokens[9] = m.tokens[7]; }},
      {"tokens[5]", [](Metadata& m) { m.tokens[5] = "\xff"; }},
      {"merges[0] 'xyz'", [](Metadata& m) { m.merges[0] = "xyz"; }},
      {"merges[1] ''", [](Metadata& m) { m.merges[1] = ""; }},
      {"merges[2] 'a zzz'", [](Metadata& m) { m.merges[2] = "a zzz"; }},
      {"eos_token_id is 300", [](Metadata& m) { m.keys.eos = 300; }},
      {"eot_token_id is 99999999999", [](Metadata& m) { m.keys.eot = 99999999999; }},
      {"no tokenizer.ggml.bos_token_id", [](Metadata& m) { m.keys.add_bos = true; }},
      {"scores has 511", [](Metadata& m) { m.scores.pop_back(); }, ErrorKind::kCorruptFile, false},
      {"scores[3]", [](Metadata& m) { m.scores[3] = std::nanf(""); }, ErrorKind::kCorruptFile, false},
      {"tokens[40]", [](Metadata& m) { m.tokens[40] = "<0xGG>"; }, ErrorKind::kCorruptFile, false},
  };
  for (const Case& c : cases) {
    Metadata data = c.byte_level ? converted("tok_bytelevel_300", "gpt2") : converted("tok_spm_bpe_512", "llama");
    data.pre = "qwen2";
    c.spoil(data);
    if (c.names == "tokens[40]") data.types[40] = kByte;
    const auto tokenizer = data.make();
    ASSERT_FALSE(tokenizer.has_value()) << c.names;
    EXPECT_EQ(tokenizer.error().kind, c.kind) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(c.names), std::string::npos) << tokenizer.error().message;
  }
}

TEST(GgufTokenizer, BytesThatTheVocabularyLacksAreTheUnknownTokenOrAnError) {
  Metadata data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  const TokenId a = data.add("a");
  auto tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  const auto ids = tokenizer->encode("ab", {});
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().kind, ErrorKind::kInvalidRequest);
  EXPECT_NE(ids.error().message.find("0x62"), std::string::npos);

  const TokenId unknown = data.add("<unk>", kUnknown);
  data.keys.unk = unknown;
  tokenizer = data.make();
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  EXPECT_EQ(encoded(*tokenizer, "ab", {}), (std::vector{a, unknown}));
}

}  // namespace
}  // namespace quire::text
