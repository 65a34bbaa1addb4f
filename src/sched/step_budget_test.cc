#include "sched/step_budget.h"

#include <gtest/gtest.h>

namespace quire::sched {
namespace {

TEST(StepBudget, AimsAtTheStepTimeOnceItHasMeasured) {
  StepBudget budget(0.1, 2048);
  for (int i = 0; i < 20; ++i) budget.observe(200, 0.2);  // a millisecond a token
  EXPECT_NEAR(static_cast<double>(budget.next(4, false).tokens), 100, 1);
  EXPECT_NEAR(static_cast<double>(budget.next(0, false).tokens), 100,
              1);  // several that start: the first need not wait
  EXPECT_NEAR(static_cast<double>(budget.next(0, true).tokens), 1000, 10);  // nobody waits: longer steps
}

TEST(StepBudget, RecoversFromSlowSteps) {
  for (int64_t decoding : {0, 4, 40}) {
    StepBudget budget(0.1, 2048);
    for (int i = 0; i < 3; ++i) budget.observe(128, 60);
    for (int i = 0; i < 40; ++i)
      budget.observe(budget.next(decoding, false).tokens,
                     1e-4 * static_cast<double>(budget.next(decoding, false).tokens));
    EXPECT_GT(budget.next(decoding, false).tokens, 900) << decoding;
  }
}

TEST(StepBudget, SmallStepsTellNothing) {
  StepBudget budget(0.1, 2048);
  const auto before = budget.next(1, false).tokens;
  budget.observe(1, 10.0);
  EXPECT_EQ(budget.next(1, false).tokens, before);
}

TEST(StepBudget, AlwaysLetsEveryStreamAndAPromptGetOn) {
  StepBudget budget(0.001, 2048);
  for (int i = 0; i < 20; ++i) budget.observe(100, 100.0);
  EXPECT_GE(budget.next(64, false).tokens, 64 + 1);
  EXPECT_GE(budget.next(0, false).tokens, 1);
}

TEST(StepBudget, FinishesAPromptWithHalfAsMuchAgain) {
  const TokenBudget budget = StepBudget(0.1, 64).next(0, false);
  EXPECT_EQ(budget.tokens, 64);
  EXPECT_EQ(budget.fit(96), 96);
  EXPECT_EQ(budget.fit(97), 64);
}

TEST(StepBudget, NeverExceedsTheCap) {
  StepBudget budget(10, 256);
  for (int i = 0; i < 20; ++i) budget.observe(100, 1e-6);
  EXPECT_EQ(budget.next(0, false).tokens, 256);
  EXPECT_EQ(budget.next(8, false).tokens, 256);
}

}  // namespace
}  // namespace quire::sched
