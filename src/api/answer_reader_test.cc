#include "api/answer_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;

// Tokens of a few bytes each; the last delta is the answer's.
struct Read {
  std::vector<OutputPiece> pieces;
  int64_t reasoning_tokens = 0;
  bool called = false;
};

Read read(const Plan& plan, const std::vector<std::string>& tokens, const std::vector<size_t>& delta_sizes) {
  AnswerReader reader(plan, {ToolFormat::kHermes, ReasoningFormat::kThink});
  Read result;
  size_t next = 0;
  for (const size_t size : delta_sizes) {
    Choice::Delta delta;
    for (size_t i = 0; i < size && next < tokens.size(); ++i) {
      delta.text += tokens[next++];
      delta.tokens.push_back(0);
      delta.text_ends.push_back(delta.text.size());
    }
    reader.read(delta, next == tokens.size(), result.pieces);
    if (next == tokens.size()) break;
  }
  result.reasoning_tokens = reader.reasoning_tokens();
  result.called = reader.called();
  return result;
}

Plan chat_plan() {
  Plan plan;
  plan.format = AnswerFormat{.tool_use = {.tools = {{.name = "f"}}}};
  return plan;
}

const std::vector<std::string> kTokens = {"<think>",
                                          "so ",
                                          "what",
                                          "</think>",
                                          "\n\n",
                                          "Well",
                                          ".",
                                          "<tool_call>",
                                          "{\"name\": \"f\"}",
                                          "</tool_call>",
                                          "<tool_call>{\"name\": \"f\"}</tool_call>"};

TEST(AnswerReader, CountsTheTokensThatReasoningCameOf) {
  const Read all = read(chat_plan(), kTokens, std::vector<size_t>(kTokens.size(), 1));
  EXPECT_EQ(all.reasoning_tokens, 3);
  EXPECT_TRUE(all.called);
  ASSERT_EQ(all.pieces.size(), 6U);
  EXPECT_EQ(all.pieces[0], (OutputPiece{Kind::kReasoning, 0, "so what"}));
  EXPECT_EQ(all.pieces[1], (OutputPiece{Kind::kContent, 0, "Well."}));
  EXPECT_EQ(all.pieces[2], (OutputPiece{Kind::kCall, 0, "f"}));
  EXPECT_EQ(all.pieces[4], (OutputPiece{Kind::kCall, 1, "f"}));
}

TEST(AnswerReader, DoesNotDependOnHowDeltasAreCut) {
  const Read whole = read(chat_plan(), kTokens, {kTokens.size()});
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<size_t> sizes(kTokens.size() + 1, 0);
    for (size_t& size : sizes) size = 1 + random() % 4;
    const Read cut = read(chat_plan(), kTokens, sizes);
    EXPECT_EQ(cut.pieces, whole.pieces);
    EXPECT_EQ(cut.reasoning_tokens, whole.reasoning_tokens);
  }
}

TEST(AnswerReader, LeavesOutWhatIsNotWanted) {
  Plan plan = chat_plan();
  plan.format->include_reasoning = false;
  plan.format->tool_use.parallel = false;
  const Read some = read(plan, kTokens, {kTokens.size()});
  EXPECT_EQ(some.reasoning_tokens, 3);  // it was made all the same
  ASSERT_EQ(some.pieces.size(), 3U);
  EXPECT_EQ(some.pieces[0].kind, Kind::kContent);
  EXPECT_EQ(some.pieces[1].kind, Kind::kCall);
}

TEST(AnswerReader, TakesACompletionAsItIs) {
  const Read all = read(Plan{}, kTokens, {2, 20});
  ASSERT_EQ(all.pieces.size(), 1U);
  EXPECT_TRUE(all.pieces[0].text.starts_with("<think>so what</think>"));
  EXPECT_EQ(all.reasoning_tokens, 0);
}

}  // namespace
}  // namespace quire::api
