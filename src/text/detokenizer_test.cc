#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "text/test_data.h"

namespace quire::text {
namespace {

std::string whole(std::string_view bytes) {
  Utf8Stream stream;
  std::string out;
  stream.push(bytes, out);
  stream.flush(out);
  return out;
}

TEST(Utf8Stream, MalformedPartsBecomeOneReplacementEach) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(whole("a\xFF"
                  "b"),
            "a" + r + "b");
  EXPECT_EQ(whole("\xE2\x82"), r);  // cut short
  EXPECT_EQ(whole("\xE2\x82"
                  "a"),
            r + "a");
  EXPECT_EQ(whole("\xF0\x9F\x98"), r);
  EXPECT_EQ(whole("\xC0\x80"), r + r);          // longer form than needed
  EXPECT_EQ(whole("\xED\xA0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(whole("\xE2\xE2\x82\xAC"), r + "€");
  EXPECT_EQ(whole("é€😀\0x"), "é€😀\0x");
}

TEST(Utf8Stream, TheCutsDoNotMatter) {
  std::mt19937 random(1);
  const std::vector<std::string> parts = {"a", "é", "€", "😀", "\xFF", "\xE2", "\x82", "\xF0\x9F", "\xED\xA0", "\xC3"};
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += parts[random() % parts.size()];
    const std::string expected = whole(bytes);
    ASSERT_TRUE(is_utf8(expected));
    Utf8Stream stream;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + random() % 4;
      stream.push(std::string_view(bytes).substr(at, n), out);
      ASSERT_TRUE(is_utf8(out));
      ASSERT_LE(stream.held_bytes(), 3U);
      at += n;
    }
    stream.flush(out);
    ASSERT_EQ(out, expected);
  }
}

TEST(DetokenizeStream, RandomTokensGiveTheTextOfDecode) {
  for (const char* name : {"tok_bytelevel_300", "tok_spm_bpe_512", "tok_unigram_320"}) {
    const auto tokenizer = Tokenizer::from_json(read_file(golden(std::string(name) + "/tokenizer.json")));
    ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
    std::mt19937 random(2);
    for (int round = 0; round < 500; ++round) {
      std::vector<TokenId> ids(20);
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<uint32_t>(tokenizer->vocab_size()));
      const bool skip = round % 2 == 0;
      DetokenizeStream stream(*tokenizer, {.skip_special = skip, .at_start = true});
      std::string text;
      for (const TokenId id : ids) {
        text += stream.push(id);
        ASSERT_TRUE(is_utf8(text));
      }
      text += stream.flush();
      ASSERT_EQ(text, decoded(*tokenizer, ids, skip));
    }
  }
}

TEST(DetokenizeStream, EndlessIncompleteBytesStaySmall) {
  const auto tokenizer = Tokenizer::from_json(read_file(golden("tok_spm_bpe_512/tokenizer.json")));
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  const TokenId byte = *tokenizer->find("<0xE2>");
  DetokenizeStream stream(*tokenizer, {});
  size_t size = 0;
  for (int i = 0; i < 100000; ++i) size += stream.push(byte).size();
  EXPECT_EQ(size, 3U * 99999U);
  EXPECT_TRUE(stream.holds_back());
}

}  // namespace
}  // namespace quire::text
