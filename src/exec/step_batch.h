// A StepBatch is what one step computes: the tokens of all scheduled requests, and for every KV cache group of its own
// the block tables and slots that say where their keys and values lie. Values only, in manager blocks.
#pragma once

#include <cstdint>
#include <vector>

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
  std::vector<int64_t> slots;   // one a row: block * block size + offset; -1: not written
};

struct StepBatch {
  std::vector<TokenId> tokens;     // one a row
  std::vector<int32_t> positions;  // one a row
  std::vector<BatchSequence> sequences;
  std::vector<int> logits_rows;     // rows whose logits are wanted, ascending
  std::vector<GroupTables> groups;  // by GroupId

  int rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace quire::exec
