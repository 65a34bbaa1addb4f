// The inside of an AttentionPlan: which rows meet which chunks together, in which order, and who computes it.
//
// A *block* is some query tokens whose rows (tokens x q heads of one kv head) walk chunks together; a *step* is one
// block at one chunk. The list of steps is the same for every kv head. An *item* is a step for one head: item i is step
// i % steps.size() of head i / steps.size(). Along the list every row meets its chunks in ascending order, so a worker
// that holds a row's first item merges straight into the row's output; other workers keep the states of their chunks
// apart, and these are merged afterwards, again in the order of the list.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace quire::kernels {

// Some consecutive query tokens of one sequence.
struct AttentionSpan {
  int sequence;
  int first;  // token among the sequence's rows
  int count;
};

struct AttentionBlock {
  int first_span;
  int spans;
  int tokens;
};

struct AttentionStep {
  int block;
  int chunk;
  bool cold;  // the first of its neighbours to read these pages
};

// Keys [lo, hi) in absolute positions.
struct KeyRange {
  int64_t lo;
  int64_t hi;
};

struct AttentionPlan::State {
  AttentionShape shape;
  std::vector<AttentionSequence> sequences;
  std::vector<AttentionSpan> spans;
  std::vector<AttentionBlock> blocks;
  std::vector<AttentionStep> steps;
  std::vector<int64_t> cost;      // of steps [0, i], i < steps.size()
  std::vector<int64_t> part_end;  // worker w computes items [part_end[w - 1] or 0, part_end[w])
  std::vector<int> kept_states;   // how many rows' states worker w keeps apart
  std::vector<int> first_step;    // by row: the first and the last step of its blocks
  std::vector<int> last_step;
  std::vector<int> order;      // while planning: short sequences, by their pages
  std::vector<int64_t> alike;  // ... and how many whole chunks each shares with the one before
  int64_t most_kept = 0;       // room for so many states that a worker keeps apart
  int rows = 0;                // one more than the greatest row
  int block_rows = 0;          // the most rows of a block, times the group

  int group() const { return shape.q_heads / shape.kv_heads; }
  int workers() const { return static_cast<int>(part_end.size()); }
  int64_t part_begin(int worker) const { return worker == 0 ? 0 : part_end[static_cast<size_t>(worker) - 1]; }
  int64_t item_count() const { return static_cast<int64_t>(steps.size()) * shape.kv_heads; }
  // What a token at this position sees.
  KeyRange visible(int64_t position) const;
  // What the tokens of a block see, as one range.
  KeyRange visible(const AttentionBlock& block) const;
  // Page of the cache that holds a position of the sequence.
  int page(int sequence, int64_t position) const {
    return sequences[static_cast<size_t>(sequence)].pages[static_cast<size_t>(position / shape.page_tokens)];
  }
  bool owns(int64_t begin, int head, int row) const {
    return static_cast<int64_t>(head) * static_cast<int64_t>(steps.size()) + first_step[static_cast<size_t>(row)] >=
           begin;
  }
};

}  // namespace quire::kernels
