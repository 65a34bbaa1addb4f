// A RequestState is what the scheduler knows of one request: its tokens, how far they are computed, its cache.
//
// There is no prefill and no decode: every step moves num_computed towards num_tokens (plus drafts). The request needs
// a sample whenever they meet. num_computed counts what is *planned*; num_in_flight of it belong to steps whose output
// has not been applied yet. Engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cache/block_hash.h"
#include "cache/coordinator.h"
#include "quire/request.h"

namespace quire::sched {

// What add() takes.
struct RequestInit {
  RequestId id;
  std::vector<TokenId> prompt;  // not empty; at most max_model_len tokens, with one of output
  int64_t max_tokens = 16;      // ends after that many output tokens; 0: once its prompt is computed
  int priority = 0;             // lower is more important; used by Policy::kPriority
  cache::HashKeys keys = {};    // adapter, media, cache salt
  // Take nothing from the prefix cache: prompt log-probabilities need every position's logits.
  bool skip_prefix_lookup = false;
  bool explain = false;  // make RequestState::report
};

enum class RequestStatus : uint8_t { kWaiting, kPreempted, kRunning };

struct RequestState {
  RequestInit init;  // the prompt has moved to `tokens`
  uint64_t arrival = 0;
  RequestStatus status = RequestStatus::kWaiting;

  std::vector<TokenId> tokens;  // prompt and output
  int64_t num_prompt = 0;
  std::vector<TokenId> drafts;           // proposed for the next step
  std::vector<cache::BlockHash> hashes;  // of `tokens`; extended as they grow

  int64_t num_computed = 0;
  int64_t num_in_flight = 0;               // of num_computed: not processed yet
  bool samples = false;                    // its latest planned step reaches its last token
  int64_t num_placeholders = 0;            // output tokens that steps in flight will bring, drafts included
  int64_t shared_boundary = 0;             // see cache::RequestTokens
  std::optional<int64_t> num_cached = {};  // tokens taken from the prefix cache when it first ran
  int num_preemptions = 0;
  std::optional<CacheReport> report = {};  // of when it first ran, if asked for

  cache::RequestCache cache;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_output() const { return num_tokens() - num_prompt; }
};

}  // namespace quire::sched
