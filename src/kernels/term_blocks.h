// Which terms of a sum numerics rule 1 adds up together.
#pragma once

namespace quire::kernels {

// Terms of one chain are first + i * step, i < count, of the other second + i * step, i < second_count. In fp32 all are
// in the first.
struct TermBlock {
  int first;
  int count;
  int second;
  int second_count;
  int step;
};

struct TermBlocks {
  const TermBlock* block;
  int count;
};

}  // namespace quire::kernels
