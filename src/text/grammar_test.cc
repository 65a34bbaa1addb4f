// Grammars through the C++ face. What they accept is tested beside the Rust half (rust/quire-text/tests/grammar.rs).
#include "text/grammar.h"

#include <thread>

#include "text/test_data.h"

namespace quire::text {
namespace {

constexpr int64_t kModelVocab = 333;  // more than the tokenizer knows

Tokenizer small_tokenizer() { return *Tokenizer::from_json(read_file(golden("tok_bytelevel_300/tokenizer.json"))); }

bool allows(const std::vector<uint32_t>& mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) == 1;
}

// The pieces that may begin an answer.
std::vector<std::string> first_pieces(const Tokenizer& tokenizer, const Constraint& constraint) {
  std::vector<uint32_t> mask(mask_words(kModelVocab));
  EXPECT_TRUE((*constraint.start())->fill(mask));
  std::vector<std::string> pieces;
  for (TokenId id = 0; id < kModelVocab; ++id)
    if (allows(mask, id)) pieces.emplace_back(tokenizer.piece(id));
  return pieces;
}

TEST(Grammar, EachKindCompilesAndItsMatcherGoesOn) {
  const Tokenizer tokenizer = small_tokenizer();
  const TokenId end = *tokenizer.find("<|im_end|>");
  const GrammarCompiler compiler(tokenizer, {end}, kModelVocab);
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"]})";
  for (const auto& [kind, text, first] :
       {std::tuple{GrammarKind::kJsonSchema, schema, "{"}, std::tuple{GrammarKind::kRegex, std::string("[{]x*"), "{"},
        std::tuple{GrammarKind::kChoice, std::string(R"(["{}"])"), "{"},
        std::tuple{GrammarKind::kLark, std::string("start: \"{\""), "{"}}) {
    const auto constraint = compiler.compile({kind, text, "field"});
    ASSERT_TRUE(constraint) << why(constraint);
    EXPECT_EQ((*constraint)->vocab_size(), kModelVocab);
    EXPECT_EQ(first_pieces(tokenizer, **constraint), std::vector<std::string>{first});
  }
  const auto word = compiler.compile({GrammarKind::kRegex, "x+", "field"});
  const auto matcher = *(*word)->start();
  const TokenId x = encoded(tokenizer, "x", {.add_special = false}).front();
  std::vector<uint32_t> mask(mask_words(kModelVocab));
  ASSERT_TRUE(matcher->fill(mask));
  EXPECT_FALSE(allows(mask, end));
  EXPECT_EQ(matcher->accept(x).value(), false);
  ASSERT_TRUE(matcher->fill(mask));
  EXPECT_TRUE(allows(mask, end));
  ASSERT_TRUE(matcher->rollback(1));
  ASSERT_TRUE(matcher->fill(mask));
  EXPECT_FALSE(allows(mask, end));
  EXPECT_EQ(matcher->accept(x).value(), false);
  EXPECT_EQ(matcher->accept(end).value(), true);
}

TEST(Grammar, ErrorsNameTheField) {
  const Tokenizer tokenizer = small_tokenizer();
  const GrammarCompiler compiler(tokenizer, {}, kModelVocab);
  for (const auto& [text, part] : {std::pair{std::string("("), "unclosed"}, std::pair{std::string("a\xff"), "UTF-8"},
                                   std::pair{std::string(size_t{1} << 17, 'a'), "bytes"}}) {
    const auto refused = compiler.compile({GrammarKind::kRegex, text, "the_field"});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidRequest);
    EXPECT_EQ(refused.error().param, "the_field");
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  const auto constraint = *compiler.compile({GrammarKind::kRegex, "ab", "the_field"});
  const auto matcher = *constraint->start();
  const auto wrong = matcher->accept(encoded(tokenizer, "b", {.add_special = false}).front());
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().param, "the_field");
}

TEST(Grammar, AConstraintOutlivesItsCompilerAndServesManyThreads) {
  std::shared_ptr<const Constraint> constraint;
  Tokenizer tokenizer = small_tokenizer();
  {
    const GrammarCompiler compiler(tokenizer, {}, kModelVocab);
    constraint = *compiler.compile({GrammarKind::kChoice, R"(["one","two"])", "f"});
  }
  const std::vector<std::string> expected = first_pieces(tokenizer, *constraint);
  EXPECT_GE(expected.size(), 2U);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) EXPECT_EQ(first_pieces(tokenizer, *constraint), expected);
    });
}

TEST(Grammar, EndTokensBeyondTheModelAreAnError) {
  const Tokenizer tokenizer = small_tokenizer();
  const GrammarCompiler compiler(tokenizer, {static_cast<TokenId>(kModelVocab)}, kModelVocab);
  const auto refused = compiler.compile({GrammarKind::kRegex, "a", "f"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInternal);
}

}  // namespace
}  // namespace quire::text
