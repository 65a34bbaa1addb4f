// Paged attention: rows of queries over keys and values that lie in pages; numerics rules 6 and 13 say every bit of the
// result.
//
// A page holds `page_tokens` consecutive tokens of one sequence. In it every kv head has one tile pair, K then V,
// always packed, also while the page fills, in the same form on every instruction set. In words, where a word is one
// fp32 number, two bf16 numbers or two int8 numbers (the lower half first), e = numbers in a word:
//   K [head_dim / e][page_tokens]                          a word of two is two dimensions of a token
//   V blocks of w <= 64 dimensions: [page_tokens / e][w]   a word of two is two tokens (even, odd) of a dimension
//   for int8 then the scales, fp32: those of K [page_tokens], those of V [page_tokens]
// A query row sees the keys up to its own position that window and chunk leave; keys outside are never read as numbers,
// so free places may hold anything. Page 0 (null) may stand wherever no row of the step looks.
//
// A plan says who computes what in one step; it serves all layers of an attention group. One thread calls these
// functions; they run on the pool's workers. Plan, workers and neighbours never change a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "quire/error.h"

namespace quire::kernels {

// Names the page layout above for a type of cache, for handshakes, tier files and the root of prefix hashes.
std::string_view kv_layout_id(DType dtype);

// Bytes of K, V and scales of one kv head in one page, without padding. kBF16, kF32 or kI8.
size_t kv_head_bytes(DType dtype, int page_tokens, int head_dim);

// What all layers of an attention group have in common.
struct AttentionShape {
  int q_heads = 0;  // q head h reads kv head h / (q_heads / kv_heads)
  int kv_heads = 0;
  int head_dim = 0;     // a multiple of 8 up to 256
  int page_tokens = 0;  // 16, 32 or 64
  DType dtype = DType::kBF16;
  int window = 0;  // W > 0: keys in (position - W, position]
  int chunk = 0;   // c > 0: keys of the same floor(position / c)
};

// What a query at this position is multiplied with: 1 + strength * ln(1 + floor((position + 1) / step)), formed in
// double. step >= 1, position >= 0.
float query_factor(int step, double strength, int position);

// kUnsupported, naming the value and what is allowed, unless the kernels can do it.
Result<void> check_attention_shape(const AttentionShape& shape);

// One layer's cache. Page p of kv head h lies at base + p * page_stride + h * head_stride (bytes, multiples of 64).
// Slot s, in manager blocks, is token s % block_tokens of block b = s / block_tokens: its page is
// b * pages_per_block + (s % block_tokens) / page_tokens, its place in the page (s % block_tokens) % page_tokens.
struct KvView {
  std::byte* base = nullptr;
  size_t page_stride = 0;
  size_t head_stride = 0;
  int block_tokens = 0;
  int pages_per_block = 0;
};

// New rows of K and V, token t of head h at k + t * stride + h * head_dim (fp32; strides in floats).
struct KvRows {
  std::span<const int64_t> slots;  // one a token; -1: not written
  const float* k = nullptr;
  const float* v = nullptr;
  size_t k_stride = 0;
  size_t v_stride = 0;
};

// Rounds rows to the cache's type (nearest even; int8 by the largest number of the row) and puts them into their slots.
// Slots must be distinct.
void write_kv(const KernelTable& table, const AttentionShape& shape, const KvView& view, const KvRows& rows,
              ThreadPool& pool);

// Rows [first_row, first_row + num_rows) of the step are consecutive positions from first_position on. `pages` is the
// mapped kernel-page table from position 0 on; it must reach the last row's position and outlive the plan's use.
struct AttentionSequence {
  std::span<const int32_t> pages;
  int first_row = 0;
  int num_rows = 0;
  int64_t first_position = 0;
};

// The arguments of one layer. Row r, q head h starts at q + r * q_stride + h * head_dim, and so with out.
struct AttentionRows {
  const float* q = nullptr;
  float* out = nullptr;  // rows of no sequence are left alone
  size_t q_stride = 0;   // floats
  size_t out_stride = 0;
  float scale = 1;
  float soft_cap = 0;            // c > 0: s becomes c * tanh(s / c)
  const float* sinks = nullptr;  // per q head, or null
};

// How a step is cut into items, in an order in which every row meets its chunks ascending, and the items into one
// contiguous part per worker. Sequences that share whole chunks of pages walk these together.
class AttentionPlan {
 public:
  AttentionPlan();
  ~AttentionPlan();
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;

  // Makes room for steps in which up to `sequences` sequences of up to `longest` tokens decode, whose pages hold up to
  // `pool_tokens`. Then neither build() nor attend() allocates for them, unless many share very much: that may grow.
  void reserve(const AttentionShape& shape, int64_t sequences, int64_t longest, int64_t pool_tokens);

  // Replaces the plan; keeps its memory. The parts of the workers take about the same time with these kernels. `shape`
  // must have passed check_attention_shape, `workers` is the pool's size, rows of different sequences must not overlap.
  void build(const KernelTable& table, const AttentionShape& shape, std::span<const AttentionSequence> sequences,
             int workers);

  struct State;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Memory that attend() needs, kept between calls; any plan may use it.
class AttentionWorkspace {
 public:
  AttentionWorkspace();
  ~AttentionWorkspace();
  AttentionWorkspace(AttentionWorkspace&&) noexcept;
  AttentionWorkspace& operator=(AttentionWorkspace&&) noexcept;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Attention of one layer. The rows' own keys must have been written. pool.size() is the plan's `workers`.
void attend(const KernelTable& table, const AttentionPlan& plan, const KvView& view, const AttentionRows& rows,
            AttentionWorkspace& workspace, ThreadPool& pool);

}  // namespace quire::kernels
