// Multi-head latent attention (MLA): all heads read one row a token, [latent | rope], and the keys and values of a head
// are linear maps of the latent. The maps are absorbed into query and output, for every row of a step, so that nothing
// but the row is kept:
//   q~ = (W_UK)^T q_nope;  s(t) = scale * (q~ . latent_t + q_pe . rope_t);  out = W_UV (sum_t p_t latent_t)
// W_UK and W_UV are, for each head, the first nope_dim and the last value_dim rows of the expansion.
//
// In bf16 the queries, q~, the rows and the sum are rounded to bf16, as the input of a matrix product; in fp32 nothing
// is. Softmax and sums follow numerics rule 6, products rule 1; every instruction set gives the same bits. One thread
// calls these functions; they run on the pool's workers. Source: DeepSeek-V2 (2024), section 2.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/buffer.h"
#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/lines.h"
#include "kernels/row_view.h"
#include "kernels/token_selection.h"
#include "quire/error.h"

namespace quire::kernels {

struct LatentShape {
  int heads = 0;
  int nope_dim = 0;            // of a query, without rope
  int rope_dim = 0;            // of a query and of a row; may be 0
  int value_dim = 0;           // of a head's output
  int rank = 0;                // of the latent
  DType dtype = DType::kBF16;  // of rows: kBF16 or kF32

  int query_dim() const { return nope_dim + rope_dim; }
  int row_dim() const { return rank + rope_dim; }
  int expansion_rows() const { return heads * (nope_dim + value_dim); }
};

// kUnsupported, naming the value and what is allowed, unless the kernel can do it.
Result<void> check_latent_shape(const LatentShape& shape);

// Bytes of a row in the cache, a multiple of 4.
size_t latent_row_bytes(const LatentShape& shape);

// The expansion as the kernels read it: of each head the rows of its keys, then its values' turned, [rank][value_dim];
// rows rounded up with zeros to sixteen numbers.
class Expansion {
 public:
  Expansion() = default;
  // From rows [heads][nope_dim + value_dim][rank]. As kBF16 they must be numbers of bf16 already.
  Expansion(const LatentShape& shape, std::span<const float> rows, DType dtype);

  DType dtype() const { return dtype_; }
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(lines_.data()); }

 private:
  DType dtype_ = DType::kF32;
  Lines lines_;
};

// Numbers of a head in it.
size_t packed_head_size(const LatentShape& shape);

// Rounds rows of row_dim() numbers (fp32, `stride` floats apart) and puts them into their slots; -1: not written.
void write_latents(const LatentShape& shape, const RowView& cache, std::span<const int64_t> slots, const float* rows,
                   size_t stride, ThreadPool& pool);

struct LatentArgs {
  LatentShape shape;
  RowView cache;
  const Expansion* expansion = nullptr;  // kBF16 only for such rows
  float scale = 1;
  const float* q = nullptr;  // rows of [heads][nope | rope], rope applied
  size_t q_stride = 0;       // floats
  float* out = nullptr;      // rows of [heads][value_dim]
  size_t out_stride = 0;
  const TokenSelection* selected = nullptr;  // the keys of each row; null: all up to its position
};

// What attend_latents() needs beside its results. It depends on rows and workers, not on how long sequences are.
class LatentWorkspace {
 public:
  // Room for steps of up to `rows` rows of this shape, too, and of those before. kExhausted.
  Result<void> reserve(const LatentShape& shape, int rows, int workers, Allocator& allocator);

  LatentWorkspace();
  ~LatentWorkspace();
  LatentWorkspace(LatentWorkspace&&) noexcept;
  LatentWorkspace& operator=(LatentWorkspace&&) noexcept;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// `pages` of the sequences are manager blocks here. The workspace has room for the shape, the rows of the step and the
// pool's workers.
void attend_latents(const KernelTable& table, const LatentArgs& args, std::span<const AttentionSequence> sequences,
                    LatentWorkspace& workspace, ThreadPool& pool);

}  // namespace quire::kernels
