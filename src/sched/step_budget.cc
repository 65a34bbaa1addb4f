#include "sched/step_budget.h"

#include <algorithm>

namespace quire::sched {
namespace {

constexpr int64_t kFirstTokens = 128;  // until a step has been measured
// What a step takes beside the requests that decode, whatever the time: smaller steps are bound by memory, so they
// would tell nothing of a token's time.
constexpr int64_t kLeastPromptTokens = 32;
// A step of the only request may be this much longer: weights are read once for all its tokens.
constexpr double kAloneFactor = 10;
constexpr double kNewest = 0.5;  // weight of the newest measurement

}  // namespace

TokenBudget StepBudget::next(int64_t decoding, bool alone) const {
  const double aim = alone ? step_seconds_ * kAloneFactor : step_seconds_;
  const int64_t fit =
      seconds_per_token_ > 0 ? static_cast<int64_t>(std::min(aim / seconds_per_token_, 1e9)) : kFirstTokens;
  // Every decoding request gets its token, whatever the time, and prompts get on by steps that can still be measured:
  // one slow step must not fix the budget for ever.
  const int64_t tokens =
      std::clamp(std::max(fit, kLeastPromptTokens + decoding), int64_t{1}, std::max(max_tokens_, decoding));
  return {tokens, tokens / 2};
}

void StepBudget::observe(int64_t tokens, double seconds) {
  if (tokens < kLeastPromptTokens || seconds <= 0) return;
  const double now = seconds / static_cast<double>(tokens);
  seconds_per_token_ = seconds_per_token_ == 0 ? now : kNewest * now + (1 - kNewest) * seconds_per_token_;
}

}  // namespace quire::sched
