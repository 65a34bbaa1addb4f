// What a caller asks of an Engine, and what comes back: values only, in token ids.
//
// Given the same model, profile and request (with its seed), the answer is the same bits at any load.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/cache_report.h"
#include "quire/constraint.h"
#include "quire/error.h"

namespace quire {

using TokenId = int32_t;

// How tokens are chosen, in the order of docs/determinism.md: the constraint, allowed tokens, bias, penalties,
// temperature, top-k, top-p, min-p, then the sample. Defaults change nothing.
struct SamplingParams {
  float temperature = 1.0F;  // 0 is greedy
  float top_p = 1.0F;        // (0, 1]
  int top_k = 0;             // 0: all
  float min_p = 0.0F;        // [0, 1]
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;  // > 0
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<TokenId> allowed_token_ids = {};  // empty: all
  uint64_t seed = 0;
  int choice = 0;  // index among the n answers of one request; part of the random key

  int max_tokens = 16;  // at least 1
  int min_tokens = 0;   // until then neither an end token nor a stop token may be chosen
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids = {};

  std::optional<int> logprobs = {};         // per generated token: itself and this many of the most likely
  std::optional<int> prompt_logprobs = {};  // per prompt token after the first
};

// Asks for what the model makes of the prompt's last token, as numbers, instead of an answer. The prompt may be as long
// as the model's length.
struct Pooling {
  // Empty: the final hidden state (after the last norm), ModelInfo::hidden_size numbers. Else how probable each of
  // these tokens is to be the next if it is one of them: the softmax of their logits.
  std::vector<TokenId> probabilities_of = {};
};

struct Request {
  std::vector<TokenId> prompt;  // not empty
  SamplingParams sampling = {};
  int priority = 0;             // lower is more important, with EngineOptions::priority_scheduling
  std::string cache_salt = {};  // requests share cached prefixes only under the same salt
  bool explain_cache = false;   // ask for Update::cache_report
  // What the answer must follow; null: nothing. The answer ends with it, whatever min_tokens and ignore_eos say.
  std::shared_ptr<const Constraint> constraint = {};
  std::optional<Pooling> pooling = {};  // then neither `sampling` nor `constraint` counts
};

// A natural log-probability, before temperature and penalties, and the token's rank (1 is the most likely).
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  int rank = 0;
};

// Log-probabilities at one position: of the token that stands there and of the most likely ones, best first.
struct PositionLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
};

enum class FinishReason : uint8_t {
  kNone,    // goes on
  kStop,    // an end or stop token, which is the last of `tokens`, the constraint's end, or `pooled` is there
  kLength,  // max_tokens, or the model's length
  kAborted,
  kError,
};

// How long an answer has taken until its latest token, in seconds. Waiting after a preemption counts where it falls.
struct RequestTimes {
  double queue = 0;    // from the engine's taking the request in until the first step that ran it
  double prefill = 0;  // from that step to the first token, or to what was asked instead
  double decode = 0;   // from the first token to the latest

  double inference() const { return prefill + decode; }
};

// What a step added to a request. After an update with a finish reason none follows.
struct Update {
  std::vector<TokenId> tokens = {};
  std::vector<PositionLogprobs> logprobs = {};         // one a token, if asked for
  std::vector<PositionLogprobs> prompt_logprobs = {};  // with the first token: positions 1..n-1 of the prompt
  std::vector<float> pooled = {};                      // all that a request with Pooling asked for
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token = {};        // the end or stop token that ended it
  std::optional<Error> error = {};               // with kError
  int cached_tokens = 0;                         // prompt tokens taken from the prefix cache
  std::optional<RequestTimes> times = {};        // with tokens, or `pooled`
  std::optional<CacheReport> cache_report = {};  // with the first token or `pooled`, if asked for
};

}  // namespace quire
