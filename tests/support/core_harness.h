// Runs requests on an engine::Core, step by step, and records what they answered and the logits behind every token.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core.h"

namespace quire::test {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::vector<float> pooled;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  int cached_tokens = 0;
  RequestTimes times;
  std::optional<CacheReport> cache_report;
  // By position: the logits computed there, from the first position on that the request's record began with.
  std::map<int64_t, std::vector<float>> logits;
  int64_t record_from = 0;
};

class CoreHarness {
 public:
  // Ends the test program with the error's message if the model does not load.
  explicit CoreHarness(EngineOptions options);
  explicit CoreHarness(std::unique_ptr<engine::Core> core);

  engine::Core& core() { return *core_; }

  // Adds a request; its answer is filled as steps run, with logits of positions from `record_from` on.
  uint64_t add(Request request, int64_t record_from = 0);
  const Answer& answer(uint64_t id) const { return answers_.at(id); }
  // Steps until nothing is left to do, checking the cache's integrity after each.
  void run();
  // One step, with the integrity check.
  void step();
  // Adds and runs to the end.
  std::vector<Answer> run(std::vector<Request> requests);

  // Overwrites all free blocks with NaN before every step.
  void poison_free_blocks(bool on) { poison_ = on; }

 private:
  void poison();

  std::unique_ptr<engine::Core> core_;
  std::map<uint64_t, Answer> answers_;
  uint64_t next_id_ = 1;
  bool poison_ = false;
};

// A greedy request for `tokens` tokens that never stops early.
Request greedy(std::vector<TokenId> prompt, int tokens);
// A request for the prompt's last hidden state or, given some, the probabilities of these tokens.
Request pooled(std::vector<TokenId> prompt, std::vector<TokenId> probabilities_of = {});

// The folder of golden models: QUIRE_GOLDEN_DIR, or the one in the source tree.
std::string golden_dir();
// A real model's file, or empty if QUIRE_MODEL_DIR does not hold it.
std::string real_model(const std::string& file);

}  // namespace quire::test
