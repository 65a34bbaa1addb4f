// What holds for every tokenizer: texts survive the way there and back, and threads may share one.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/test_data.h"

namespace quire::text {
namespace {

std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> parts = {
      " ", "  ",   "\n", "\t",        "\r\n",   "a", "the",      "Ab",   "'s",       "123",
      "é", "漢字", "😀", "\u0301",    "\u3000", "<", "|im_end|", "▁",    "\xC2\xA0", "\xE2\x80\x8D",
      ".", "!?",   "\\", "{\"a\":1}", "\x01",   "ﬁ", "ß",        "한국", "नमस्ते",
  };
  std::string text;
  for (auto i = random() % 12; i > 0; --i) text += parts[random() % parts.size()];
  return text;
}

TEST(AnyTokenizer, TextsSurviveTheWayThereAndBack) {
  // The third fixture has an unknown token and loses what it cannot spell.
  for (const char* name : {"tok_bytelevel_300", "tok_spm_bpe_512"}) {
    const auto tokenizer = Tokenizer::from_json(read_file(golden(std::string(name) + "/tokenizer.json")));
    ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
    std::mt19937 random(3);
    for (int round = 0; round < 2000; ++round) {
      std::string text = random_text(random);
      const auto ids = encoded(*tokenizer, text, {.add_special = true, .parse_special = false});
      // The SentencePiece style spells a space as ▁, and so cannot tell the two apart.
      if (std::string_view(name) == "tok_spm_bpe_512") {
        for (size_t at; (at = text.find("▁")) != std::string::npos;) text.replace(at, 3, " ");
      }
      ASSERT_EQ(decoded(*tokenizer, ids, true), text);
    }
  }
}

TEST(AnyTokenizer, ThreadsShareATokenizerAndATemplate) {
  const auto tokenizer = Tokenizer::from_json(read_file(golden("tok_bytelevel_300/tokenizer.json")));
  ASSERT_TRUE(tokenizer.has_value()) << why(tokenizer);
  const auto chat_template =
      ChatTemplate::compile({.text = "{% for m in messages %}[{{ m.content | trim | tojson }}]{% endfor %}"});
  ASSERT_TRUE(chat_template.has_value()) << why(chat_template);
  std::vector<std::jthread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int round = 0; round < 200; ++round) {
        const std::string text = random_text(random);
        EXPECT_EQ(decoded(*tokenizer, encoded(*tokenizer, text, {}), false), text);
        const std::string messages = nlohmann::json::array({{{"content", "x" + text + "x"}}}).dump();
        EXPECT_EQ(chat_template->render(messages), "[" + nlohmann::json("x" + text + "x").dump() + "]");
        EXPECT_FALSE(chat_template->render("{}").has_value());
      }
    });
  }
}

}  // namespace
}  // namespace quire::text
