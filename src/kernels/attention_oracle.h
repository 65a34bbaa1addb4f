// For tests: attention as numerics rule 6 words it, row by row over dense keys and values, without tiles or pages; and
// a world of sequences in a paged cache that is NaN wherever nothing was written.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "kernels/attention.h"

namespace quire::kernels {

// Keys and values of one sequence as they come from the model (fp32), [token][kv head][dim].
struct DenseTokens {
  std::vector<float> k;
  std::vector<float> v;
};

struct OracleOptions {
  float scale = 1;
  float soft_cap = 0;
  const float* sinks = nullptr;
};

// Output of q head `q_head` for a query row `q` (fp32) at `position` of the sequence.
std::vector<float> attention_oracle(const AttentionShape& shape, const DenseTokens& tokens, const float* q, int q_head,
                                    int64_t position, const OracleOptions& options);

// A cache of manager blocks, where each kernel page may have more behind it (another layer's, in packed layouts).
class TestCache {
 public:
  // `gap`: how many pages of others lie between this layer's blocks.
  TestCache(const AttentionShape& shape, int blocks, int block_tokens, int gap);

  const KvView& view() const { return view_; }
  // Manager blocks from a shuffled list, never block 0.
  std::vector<int32_t> take(int64_t tokens);
  // Kernel pages of manager blocks.
  std::vector<int32_t> pages(const std::vector<int32_t>& blocks) const;
  // Writes tokens [begin, end) of a sequence.
  void write(const KernelTable& table, const std::vector<int32_t>& blocks, const DenseTokens& tokens, int64_t begin,
             int64_t end, ThreadPool& pool);
  const Buffer& memory() const { return memory_; }

 private:
  AttentionShape shape_;
  Allocator allocator_;
  Buffer memory_;
  KvView view_;
  std::vector<int32_t> free_;
};

std::vector<float> random_numbers(size_t n, std::mt19937& rng);
DenseTokens random_tokens(const AttentionShape& shape, int64_t tokens, std::mt19937& rng);

}  // namespace quire::kernels
