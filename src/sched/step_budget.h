// How many tokens a step may compute, so that it takes about the time that was asked for. One rule for the engine,
// which measures its steps, and for the simulator, which counts their time.
//
// A value: observe() each step, ask next() before the next. The budget decides who waits, never what is answered.
#pragma once

#include <cstdint>

namespace quire::sched {

// How many tokens a step may compute. What would be left with at most `stretch` tokens is finished at once: to wait
// another step for so little would cost its request more than it costs the others.
struct TokenBudget {
  constexpr TokenBudget(int64_t budget, int64_t overrun = 0) : tokens(budget), stretch(overrun) {}
  constexpr int64_t fit(int64_t need) const { return need <= tokens + stretch ? need : tokens; }

  int64_t tokens;
  int64_t stretch;
};

class StepBudget {
 public:
  // `step_seconds` > 0 is the aim while requests wait for each other; `max_tokens` >= 1 caps every step.
  StepBudget(double step_seconds, int64_t max_tokens) : step_seconds_(step_seconds), max_tokens_(max_tokens) {}

  // `decoding`: requests that stream tokens already. `alone`: there is but one request, so nobody waits for the step.
  TokenBudget next(int64_t decoding, bool alone) const;
  void observe(int64_t tokens, double seconds);

 private:
  double step_seconds_;
  int64_t max_tokens_;
  double seconds_per_token_ = 0;  // of recent steps that were large enough to tell; 0: not known yet
};

}  // namespace quire::sched
