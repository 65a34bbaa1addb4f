// A StepBatch is what one step computes: the tokens of all scheduled requests, and for every KV cache group of its own
// the block tables and slots that say where their keys and values lie. Values only, in manager blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "quire/request.h"

namespace quire::exec {

// Rows [first_row, first_row + num_rows) are consecutive positions of one request.
struct BatchSequence {
  int first_row = 0;
  int num_rows = 0;
  int64_t first_position = 0;
};

// The metadata of one KV cache group. Layers of other groups must not read it: the same column is another block there.
struct GroupTables {
  int width = 0;                // columns
  std::vector<int32_t> blocks;  // [sequences][width]; null (0) below a window; beyond a request's blocks: anything
  // One a row: block * block size + offset; -1: not written. In a ring tokens of one step may share a slot.
  std::vector<int64_t> slots;
  // The same for layers that keep one row for several tokens: -1 but for the last of them.
  struct Compressed {
    int64_t tokens_per_row = 0;
    std::vector<int64_t> slots;  // block * rows of a block + row
  };
  std::vector<Compressed> compressed;  // one for each tokens_per_row in the group

  std::span<const int32_t> row(int64_t sequence) const {
    return std::span(blocks).subspan(static_cast<size_t>(sequence * width), static_cast<size_t>(width));
  }

  const std::vector<int64_t>& slots_for(int64_t tokens_per_row) const {
    if (tokens_per_row == 1) return slots;
    return std::ranges::find(compressed, tokens_per_row, &Compressed::tokens_per_row)->slots;
  }
};

struct StepBatch {
  std::vector<TokenId> tokens;     // one a row
  std::vector<int32_t> positions;  // one a row
  std::vector<BatchSequence> sequences;
  std::vector<int> logits_rows;     // rows whose logits are wanted, ascending
  std::vector<GroupTables> groups;  // by GroupId

  const GroupTables& tables(GroupId group) const { return groups[static_cast<size_t>(group.value)]; }
  int rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace quire::exec
