#include "cache/write_mask.h"

#include <algorithm>

namespace quire::cache {
namespace {

int64_t blocks_needed(const WriteMaskQuery& q) {
  if (q.rule.search == HitRule::Search::kBackwardSingle) return 1;
  return q.rule.contiguous_blocks + (q.drops_last_block ? 1 : 0);
}

void mark(std::vector<bool>& mask, int64_t start, int64_t from, int64_t to) {
  const int64_t end = start + static_cast<int64_t>(mask.size());
  for (int64_t i = std::max(start, from); i < std::min(end, to); ++i) mask[static_cast<size_t>(i - start)] = true;
}

// kTurnEnds lowers the rank of earlier ones later.
bool keeps_all_boundaries(const WriteMaskQuery& q) {
  return q.retention.keep == RetentionPolicy::Keep::kEveryBoundary ||
         q.retention.keep == RetentionPolicy::Keep::kTurnEnds;
}

void mark_reused(const WriteMaskQuery& q, std::vector<bool>& mask, int64_t start) {
  for (const int64_t boundary : q.reused_boundaries) {
    const BlockRange range = blocks_for_boundary(q, boundary);
    mark(mask, start, range.first, range.last);
  }
}

// A hit needs `need` blocks before a boundary; with a dropped block they end one block past it.
bool window_mask(const WriteMaskQuery& q, int64_t start, int64_t end, std::vector<bool>& mask) {
  if (q.alignment_tokens % q.block_tokens != 0) return false;  // boundaries inside blocks: keep all
  const int64_t shift = q.drops_last_block ? 1 : 0;
  const int64_t need = blocks_needed(q);
  mask.assign(static_cast<size_t>(end - start), false);
  if (q.retention.keep != RetentionPolicy::Keep::kKnownReuse) {
    const bool sparse = q.retention.keep == RetentionPolicy::Keep::kEveryInterval;
    const int64_t segment = (sparse ? q.retention.interval_tokens : q.alignment_tokens) / q.block_tokens;
    if (need >= segment) return false;
    for (int64_t i = std::max(start, shift); i < end; ++i) {
      if ((i - shift) % segment >= segment - need) mask[static_cast<size_t>(i - start)] = true;
    }
    if (q.final_segment_end && !q.drops_last_block) {
      const int64_t last = *q.final_segment_end;
      const int64_t last_start = last - last % segment;
      if (last_start < last) mark(mask, start, std::max(last_start, last - need), last);
    }
  }
  if (!keeps_all_boundaries(q)) mark_reused(q, mask, start);
  return true;
}

// A hit needs the one block that ends at the boundary. Recurrent layers have no drafts, so nothing is shifted.
bool state_mask(const WriteMaskQuery& q, int64_t start, int64_t end, std::vector<bool>& mask) {
  if (keeps_all_boundaries(q)) return false;
  mask.assign(static_cast<size_t>(end - start), false);
  if (q.retention.keep == RetentionPolicy::Keep::kEveryInterval) {
    const int64_t segment = q.retention.interval_tokens / q.block_tokens;
    if (segment <= 1) return false;
    for (int64_t i = start; i < end; ++i) {
      if ((i + 1) % segment == 0) mask[static_cast<size_t>(i - start)] = true;
    }
  }
  mark_reused(q, mask, start);
  return true;
}

}  // namespace

BlockRange blocks_for_boundary(const WriteMaskQuery& q, int64_t tokens) {
  const bool shifted = q.drops_last_block && q.rule.search == HitRule::Search::kBackward;
  const int64_t last = tokens / q.alignment_tokens * q.alignment_tokens / q.block_tokens + (shifted ? 1 : 0);
  return {last - blocks_needed(q), last};
}

bool write_mask(const WriteMaskQuery& query, int64_t start, int64_t end, std::vector<bool>& mask) {
  switch (query.rule.search) {
    case HitRule::Search::kBackward:
      return window_mask(query, start, end, mask);
    case HitRule::Search::kBackwardSingle:
      return state_mask(query, start, end, mask);
    case HitRule::Search::kNever:
    case HitRule::Search::kForward:
    case HitRule::Search::kForwardFromChunk:
      return false;
  }
  return false;
}

int64_t replay_boundary(int64_t num_prompt_tokens, int64_t scheduler_block, bool drops_last_block) {
  const int64_t reusable = num_prompt_tokens - 1;
  if (!drops_last_block) return reusable;
  return std::max<int64_t>(0, reusable / scheduler_block * scheduler_block - scheduler_block);
}

int64_t checkpoint_position(int64_t num_tokens, int64_t hash_block, bool drops_last_block, int64_t lookahead) {
  const int64_t follow = std::max({int64_t{1}, lookahead, drops_last_block ? hash_block : 0});
  return std::max<int64_t>(0, (num_tokens - follow) / hash_block * hash_block);
}

}  // namespace quire::cache
