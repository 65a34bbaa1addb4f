// An indexer over pooled keys: it decides which tokens a layer's attention reads (DeepSeek-V3.2, GLM-5, GLM-5.3).
//
// `pool` consecutive tokens share one key. Each token brings a key (after LayerNorm and rope, if there is one) and a
// gate; when the last token of a pool is there, for every channel
//   pooled = sum_i a_i key_i,  a = softmax over the pool's tokens i of (gate_i + position_bias_i).
// Tokens of the pool that is still open wait in a ring of `pool` rows, row position mod pool. A pool of one token is
// that token's key, without gates, biases and ring. A token at position p scores the (p + 1) / pool complete pools:
//   score(j) = sum over heads of w_h * max(0, q_h . pooled_j);  w_h = weight_h / sqrt(dim * heads)
// and reads the tokens of the top_k / pool best ones, the lower pool where two score the same, and those of its own
// open pool. A row with a score that is NaN has no best ones: it reads nothing, which makes it NaN. Everything is fp32
// in one fixed order, the same on every instruction set, but the pooled key, which the cache rounds to `dtype`. One
// thread calls these functions; they run on the pool's workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/rope.h"
#include "kernels/row_view.h"
#include "kernels/token_selection.h"
#include "quire/error.h"

namespace quire::kernels {

struct PooledIndexShape {
  int pool = 0;   // tokens
  int heads = 0;  // of the index queries
  int dim = 0;
  int top_k = 0;               // tokens, a multiple of `pool`
  DType dtype = DType::kBF16;  // of pooled keys: kBF16 or kF32

  bool keeps_ring() const { return pool > 1; }
  int most_selected() const { return top_k + pool - 1; }
};

// kUnsupported, naming the value and what is allowed, unless the kernel can do it.
Result<void> check_pooled_index_shape(const PooledIndexShape& shape);

// Bytes of a pooled key, and of a ring's row: key, then gate, in fp32.
size_t pooled_key_bytes(const PooledIndexShape& shape);
size_t open_pool_row_bytes(const PooledIndexShape& shape);

struct PooledIndexArgs {
  PooledIndexShape shape;
  const float* norm_weight = nullptr;  // [dim], of the keys' LayerNorm
  const float* norm_bias = nullptr;
  float norm_epsilon = 0;
  const RopeTable* rope = nullptr;       // of keys, behind the norm; null: none
  const float* position_bias = nullptr;  // [pool][dim]; with a ring alone, as are `gate`, `ring` and `ring_slots`
  const float* key = nullptr;            // rows of [dim], before the norm
  const float* gate = nullptr;           // rows of [dim]
  const float* weight = nullptr;         // rows of [heads]
  size_t stride = 0;                     // floats, of the three
  const float* q = nullptr;              // rows of [heads][dim], rope applied
  size_t q_stride = 0;
  RowView keys;                        // pooled
  std::span<const int64_t> key_slots;  // one a row; -1 where no pool ends
  RowView ring = {};
  std::span<const int64_t> ring_slots = {};  // one a row
};

// What both functions need beside their results. It does not depend on how long sequences are.
class IndexWorkspace {
 public:
  // Room for this shape, too, and those before. kExhausted.
  Result<void> reserve(const PooledIndexShape& shape, int workers, Allocator& allocator);

  bool holds(const PooledIndexShape& shape, int workers) const;

  struct Pool {
    float score;
    int64_t index;
  };
  struct Worker {
    float* numbers = nullptr;
    std::vector<Pool> pools;  // the best ones
  };
  Worker& worker(int i) { return workers_[static_cast<size_t>(i)]; }

 private:
  size_t floats_ = 0, pools_ = 0;  // of a worker
  Buffer memory_;
  std::vector<Worker> workers_;
};

// Completes the pools that end in this step, and leaves the tokens of open ones in their rings. The workspace has room
// for the shape and the pool's workers, here and below.
void pool_keys(const KernelTable& table, const PooledIndexArgs& args, std::span<const AttentionSequence> sequences,
               IndexWorkspace& workspace, ThreadPool& pool);

// What every row of the step reads, from complete pools in the cache. `pages` are the pooled keys' manager blocks. The
// selection has room for all rows, of shape.most_selected() or of all positions up to the row's.
void select_tokens(const KernelTable& table, const PooledIndexArgs& args, std::span<const AttentionSequence> sequences,
                   IndexWorkspace& workspace, ThreadPool& pool, TokenSelection& selection);

}  // namespace quire::kernels
