// Which full blocks of a group are worth publishing: exactly those that the group's hit rule can ever ask for.
//
// Joint hits end at multiples of the hit alignment. A window group needs only the few blocks before such a boundary, a
// recurrent group only the one that ends there; publishing others would fill the index with blocks that nobody can hit,
// and publishing fewer would make the lookup fail for ever. So the masks follow from the rule that reads.
//
// Pure functions of values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/spec.h"

namespace quire::cache {

// At which boundaries sparse groups (windows, recurrent states) keep what a later hit needs. Full groups keep all.
struct RetentionPolicy {
  enum class Keep : uint8_t {
    kEveryBoundary,  // dense
    kEveryInterval,  // at multiples of `interval_tokens`, and at boundaries a later request is known to use
    kTurnEnds,       // dense, but what serves only boundaries that the request has passed is evicted before all else;
                     // not so its last one, where the next turn of a conversation goes on, nor those that a later
                     // request is known to use
    kKnownReuse,     // only at boundaries a later request is known to use: end of prompt, shared-prefix junctions
  };
  Keep keep = Keep::kEveryBoundary;
  int64_t interval_tokens = 0;  // a multiple of the scheduler block
};

struct WriteMaskQuery {
  HitRule rule;
  int64_t block_tokens = 0;       // tokens that a block of the group covers
  int64_t alignment_tokens = 0;   // joint hits end at multiples of this
  bool drops_last_block = false;  // the group's hits drop one block (a drafter recomputes it)
  RetentionPolicy retention = {};
  std::span<const int64_t> reused_boundaries = {};  // tokens; see replay_boundary()
  // End, in blocks, of the request's last segment, which may lie past the blocks in question.
  std::optional<int64_t> final_segment_end = {};
};

// Whether a hit needs only some of the blocks before its end.
inline bool is_sparse(const HitRule& rule) {
  return rule.search == HitRule::Search::kBackward || rule.search == HitRule::Search::kBackwardSingle;
}

// The blocks [first, last) that a hit of `tokens` tokens, rounded down to the alignment, asks for.
struct BlockRange {
  int64_t first;
  int64_t last;
};
BlockRange blocks_for_boundary(const WriteMaskQuery& query, int64_t tokens);

// False if all blocks start .. end-1 are worth publishing; else `mask`, whose memory is used again, tells which are.
bool write_mask(const WriteMaskQuery& query, int64_t start, int64_t end, std::vector<bool>& mask);

// The prefix length at which the same prompt will be found again: the last token must be computed for its logits. A
// group whose hits drop one scheduler block is found one block earlier, at a boundary.
int64_t replay_boundary(int64_t num_prompt_tokens, int64_t scheduler_block, bool drops_last_block);

// Where a recurrent group should leave a checkpoint in a prefill of `num_tokens`: the last hash boundary that a later
// hit may end at. At least one token must follow it, the `lookahead` tokens that its hash covers, and the unit that a
// drafter's groups drop.
int64_t checkpoint_position(int64_t num_tokens, int64_t hash_block, bool drops_last_block, int64_t lookahead);

}  // namespace quire::cache
