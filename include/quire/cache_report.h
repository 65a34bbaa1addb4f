// What the prefix cache did for one request, and why it did not do more: values only.
//
// A prompt's tokens are either taken from the cache, as far as every KV cache group has them, or computed. For each
// group the report says how many were taken and why the rest was not. It tells of a request's own keys alone:
// with a cache salt or an adapter, others' load shows only in what was evicted, and in kUnknown once the memory of
// evicted keys is full.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace quire {

enum class MissReason : uint8_t {
  kNeverSeen,     // nobody computed this prefix since the start
  kOtherKeys,     // nobody did under this request's salt or adapter; under others is not told
  kEvicted,       // it was there and gave way to other blocks
  kNotRetained,   // blocks that only a place inside an earlier request needs: not kept, or the first to give way
  kUnknown,       // evicted too long ago to be remembered, or never seen
  kBelowMinimum,  // shorter than the least that is reused; the last token is always computed
  kUnused,        // this group has it, but another one does not
  kNotLookedUp,   // the request must compute everything, or the prefix cache is off
};

constexpr std::string_view name_of(MissReason reason) {
  switch (reason) {
    case MissReason::kNeverSeen:
      return "never_seen";
    case MissReason::kOtherKeys:
      return "salt_or_adapter";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kNotRetained:
      return "not_retained";
    case MissReason::kUnknown:
      return "unknown";
    case MissReason::kBelowMinimum:
      return "below_minimum";
    case MissReason::kUnused:
      return "unused";
    case MissReason::kNotLookedUp:
      return "not_looked_up";
  }
  return "?";
}

// Tokens [from, to) of the prompt.
struct CacheMiss {
  int64_t from = 0;
  int64_t to = 0;
  MissReason reason = MissReason::kUnknown;
  std::optional<double> evicted_seconds_ago =
      {};  // with kEvicted and, if known, kNotRetained: when the last of it went
  bool operator==(const CacheMiss&) const = default;
};

struct GroupReport {
  int group = 0;
  std::string_view kind = {};  // of its layers: "full", "sliding window", ...; points to a literal
  int64_t hit_tokens = 0;
  std::vector<CacheMiss> misses = {};  // in order; with the hit they make up the whole prompt
};

struct CacheReport {
  int64_t minimum_reuse_tokens = 0;  // the least that is reused, and the step in which more is; 0: nothing can be
  std::vector<GroupReport> groups = {};
};

}  // namespace quire
