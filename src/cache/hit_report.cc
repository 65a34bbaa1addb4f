#include "cache/hit_report.h"

#include <algorithm>

namespace quire::cache {
namespace {

struct Cause {
  MissReason reason;
  std::optional<double> evicted_seconds_ago = {};
};

class Reporter {
 public:
  Reporter(const PrefixIndex& index, const EvictedKeys& evicted, const ReportQuery& query)
      : index_(index), evicted_(evicted), q_(query) {}

  GroupReport report(const ReportedGroup& group) const {
    GroupReport report{.group = group.id.value, .kind = group.kind};
    if (!q_.looked_up) {
      add(report, 0, q_.num_tokens, {MissReason::kNotLookedUp});
    } else if (group.rule.search == HitRule::Search::kNever) {
      add(report, 0, q_.num_tokens, {MissReason::kNotRetained});
    } else {
      report.hit_tokens = q_.hit_length;
      explain_rest(group, report);
    }
    return report;
  }

 private:
  int64_t hashed_tokens() const { return static_cast<int64_t>(q_.hashes.size()) * q_.hash_block; }
  PrefixIndex::Key key(GroupId group, int64_t length) const {
    return {q_.hashes[static_cast<size_t>(length / q_.hash_block - 1)], group};
  }
  bool has(const ReportedGroup& group, int64_t length) const {
    return index_.find(key(group.id, length)) != kNullBlock;
  }

  // Every longer prefix that hits may end at, in turn: which block of those that it needs is missing, the last of
  // them? Blocks before the hit's end are not looked up: longer prefixes need only such as the hit has.
  void explain_rest(const ReportedGroup& group, GroupReport& report) const {
    const int64_t unit = q_.alignment_tokens;
    const int64_t block = group.block_tokens;
    const int64_t reusable = std::min(q_.num_tokens - 1, hashed_tokens()) / unit * unit;
    int64_t column = q_.hit_length / block;  // the next to be looked up
    int64_t missing = 0;                     // tokens at the end of the last one that is not there
    for (int64_t end = q_.hit_length + unit; end <= reusable; end += unit) {
      const int64_t length = end + (group.drops_last ? block : 0);  // one block more is matched, then dropped
      Cause cause{MissReason::kBelowMinimum};
      if (length <= hashed_tokens()) {
        if (group.rule.search == HitRule::Search::kBackwardSingle) column = std::max(column, length / block);
        for (; column < length / block; ++column) {
          if (!has(group, (column + 1) * block)) missing = (column + 1) * block;
        }
        cause = missing_at(group, length, missing);
      }
      add(report, end - unit, end, cause);
    }
    add(report, std::max(reusable, q_.hit_length), q_.num_tokens, {MissReason::kBelowMinimum});
  }

  // `missing`: the end of the last missing whole block within `length`; 0: none after the hit.
  Cause missing_at(const ReportedGroup& group, int64_t length, int64_t missing) const {
    const bool single = group.rule.search == HitRule::Search::kBackwardSingle;
    if ((single || length % group.block_tokens != 0) && !has(group, length)) return why(group, length);
    if (single || missing <= first_needed(group, length)) return {MissReason::kUnused};
    return why(group, missing);
  }

  // Blocks that end at or before this many tokens are not needed for a hit of `length`.
  static int64_t first_needed(const ReportedGroup& group, int64_t length) {
    const int64_t block = group.block_tokens;
    switch (group.rule.search) {
      case HitRule::Search::kForwardFromChunk:
        return length / group.chunk * group.chunk / block * block;
      case HitRule::Search::kBackward:
        return std::max<int64_t>(0, length / block - group.rule.contiguous_blocks - (group.drops_last ? 1 : 0)) * block;
      default:
        return 0;
    }
  }

  // Why the block that ends the first `length` tokens is not there.
  Cause why(const ReportedGroup& group, int64_t length) const {
    if (const auto eviction = evicted_.find(key(group.id, length))) {
      return {eviction->demoted ? MissReason::kNotRetained : MissReason::kEvicted, q_.now - eviction->when};
    }
    const bool seen = std::ranges::any_of(q_.groups, [&](const ReportedGroup& other) {
      return other.rule.search != HitRule::Search::kNever && other.id != group.id &&
             (has(other, length) || evicted_.find(key(other.id, length)));
    });
    // The prefix was computed, and evictions are all known: then this group did not publish it.
    if (seen) return {evicted_.complete() ? MissReason::kNotRetained : MissReason::kUnknown};
    if (!evicted_.complete()) return {MissReason::kUnknown};
    return {q_.own_keys ? MissReason::kOtherKeys : MissReason::kNeverSeen};
  }

  static void add(GroupReport& report, int64_t from, int64_t to, const Cause& cause) {
    if (from >= to) return;
    if (!report.misses.empty() && report.misses.back().reason == cause.reason) {
      CacheMiss& last = report.misses.back();
      last.to = to;
      if (cause.evicted_seconds_ago) {
        last.evicted_seconds_ago =
            std::min(last.evicted_seconds_ago.value_or(*cause.evicted_seconds_ago), *cause.evicted_seconds_ago);
      }
      return;
    }
    report.misses.push_back({from, to, cause.reason, cause.evicted_seconds_ago});
  }

  const PrefixIndex& index_;
  const EvictedKeys& evicted_;
  const ReportQuery& q_;
};

}  // namespace

CacheReport report_hit(const PrefixIndex& index, const EvictedKeys& evicted, const ReportQuery& query) {
  CacheReport report{.minimum_reuse_tokens = query.alignment_tokens};
  const Reporter reporter(index, evicted, query);
  for (const ReportedGroup& group : query.groups) report.groups.push_back(reporter.report(group));
  return report;
}

}  // namespace quire::cache
