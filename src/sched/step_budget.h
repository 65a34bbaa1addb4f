// How many tokens a step may compute, so that it takes about the time that was asked for.
//
// A value: observe() each step, ask tokens() before the next. The budget decides who waits, never what is answered.
#pragma once

#include <cstdint>

namespace quire::engine {

class StepBudget {
 public:
  // What a step takes beside the requests that decode, whatever the time: smaller steps are bound by memory, so they
  // would tell nothing of a token's time.
  static constexpr int64_t kLeastPromptTokens = 32;

  // `step_seconds` > 0 is the aim while requests wait for each other; `max_tokens` >= 1 caps every step.
  StepBudget(double step_seconds, int64_t max_tokens) : step_seconds_(step_seconds), max_tokens_(max_tokens) {}

  // `decoding`: requests that stream tokens already. `alone`: there is but one request, so nobody waits for the step.
  int64_t tokens(int64_t decoding, bool alone) const;
  void observe(int64_t tokens, double seconds);

 private:
  double step_seconds_;
  int64_t max_tokens_;
  double seconds_per_token_ = 0;  // of recent steps that were large enough to tell; 0: not known yet
};

}  // namespace quire::engine
