#include "engine/step_budget.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

TEST(StepBudget, AimsAtTheStepTimeOnceItHasMeasured) {
  StepBudget budget(0.1, 2048);
  for (int i = 0; i < 20; ++i) budget.observe(200, 0.2);  // a millisecond a token
  EXPECT_NEAR(static_cast<double>(budget.tokens(4, false)), 100, 1);
  EXPECT_NEAR(static_cast<double>(budget.tokens(0, false)), 100, 1);  // several that start: the first need not wait
  EXPECT_NEAR(static_cast<double>(budget.tokens(0, true)), 200, 2);   // nobody waits: longer steps
}

TEST(StepBudget, RecoversFromSlowSteps) {
  for (int64_t decoding : {0, 4, 40}) {
    StepBudget budget(0.1, 2048);
    for (int i = 0; i < 3; ++i) budget.observe(128, 60);
    for (int i = 0; i < 40; ++i)
      budget.observe(budget.tokens(decoding, false), 1e-4 * static_cast<double>(budget.tokens(decoding, false)));
    EXPECT_GT(budget.tokens(decoding, false), 900) << decoding;
  }
}

TEST(StepBudget, SmallStepsTellNothing) {
  StepBudget budget(0.1, 2048);
  const auto before = budget.tokens(1, false);
  budget.observe(1, 10.0);
  EXPECT_EQ(budget.tokens(1, false), before);
}

TEST(StepBudget, AlwaysLetsEveryStreamAndAPromptGetOn) {
  StepBudget budget(0.001, 2048);
  for (int i = 0; i < 20; ++i) budget.observe(100, 100.0);
  EXPECT_GE(budget.tokens(64, false), 64 + 1);
  EXPECT_GE(budget.tokens(0, false), 1);
}

TEST(StepBudget, NeverExceedsTheCap) {
  StepBudget budget(10, 256);
  for (int i = 0; i < 20; ++i) budget.observe(100, 1e-6);
  EXPECT_EQ(budget.tokens(0, false), 256);
  EXPECT_EQ(budget.tokens(8, false), 256);
}

}  // namespace
}  // namespace quire::engine
