// C[M, N] = A[M, K] * W[N, K]^T for packed weights, with every output one fixed chain of operations.
//
// The bits of an output depend on its row of A and its row of W alone: not on M, the tile, the thread, the instruction
// set or the other rows (docs/determinism.md, rules 1, 2, 4 and 11). NaNs are equal whatever their payload.
//
// Activations are fp32 rows made ready for one kind of kernel, once, for all matrices that read them. Reading them is
// safe from any thread; different rows may be set from different threads. One kernel table prepares and reads them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/gemm_kernels.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"

namespace quire::kernels {

enum class ActivationKind : uint8_t {
  kF32,
  kRounded,  // to bf16, in fp32 again: for weights of fp16
  kBF16,     // the same, as the kernels of bf16 weights read them
  kInt8,     // rule 4: one scale per 32 inputs
};

// What a matrix of this layout is multiplied with.
ActivationKind activation_kind(Layout layout);

// Whether so many rows are multiplied in wide tiles, by matrix instructions.
bool multiplies_wide(const KernelTable& table, ActivationKind kind, int rows);

// Rows in memory of someone else's.
class ActivationRows {
 public:
  ActivationRows() = default;
  // For kernels of this table; kInt8 needs whole groups of 32. They take room() bytes at `memory`.
  ActivationRows(const KernelTable& table, ActivationKind kind, int rows, int inputs, std::byte* memory);
  // No more than this, whatever the kind.
  static size_t most_room(int rows, int inputs);

  // Prepares rows [begin, end) from fp32, with the table that they are for: row m lies at x + m * stride.
  void set_rows(const KernelTable& table, const float* x, size_t stride, int begin, int end);
  // Prepares row m from inputs() fp32 values, for example right after a norm made them.
  void set_row(const KernelTable& table, const float* x, int m);
  // The same from row `from` of others of the kind kInt8, as many inputs and the same table.
  void copy_row(const ActivationRows& others, int from, int m);

  ActivationKind kind() const { return kind_; }
  int rows() const { return rows_; }
  int inputs() const { return inputs_; }

  // Rows are multiplied in tiles, as equal in size as can be: 8 rows are 4 + 4, not 6 + 2. Tile t holds rows
  // [tile_begin(t), tile_begin(t + 1)). Wide tiles, of matrix instructions, are full but the last.
  int tiles() const { return tiles_; }
  int tile_begin(int t) const {
    return wide_ ? std::min(t * kWideRows, rows_) : static_cast<int>(int64_t{rows_} * t / tiles_);
  }
  bool wide() const { return wide_; }
  // For kernels: where tile t starts, and the bytes from one row of floats to the next.
  const std::byte* tile(int t) const { return memory_ + static_cast<size_t>(tile_begin(t)) * pitch_; }
  size_t pitch() const { return pitch_; }
  // Bytes that the rows take.
  size_t room() const { return static_cast<size_t>(room_rows_) * pitch_; }

 private:
  // Where the kInt8 values of a row lie, its records, and the bytes from one group to the next.
  struct Place {
    std::byte *values, *records;
    size_t step;
  };
  Place place_of(int m) const;
  int tile_of(int m) const;

  std::byte* memory_ = nullptr;
  ActivationKind kind_ = ActivationKind::kF32;
  int rows_ = 0;
  int inputs_ = 0;
  int tiles_ = 0;
  int room_rows_ = 0;  // with what is left empty in the last wide tile
  size_t pitch_ = 0;   // bytes a row takes
  bool wide_ = false;
};

// Rows in memory of their own.
class Activations : public ActivationRows {
 public:
  // Room for `rows` rows of `inputs` numbers of any kind; keeps what it has if that is enough. Memory that is never
  // used costs nothing. kExhausted.
  Result<void> reserve(int rows, int inputs, Allocator& allocator);

  // Forgets the content and says what comes next, for kernels of this table. Must fit what was reserved; kInt8 needs
  // whole groups of 32.
  void reshape(const KernelTable& table, ActivationKind kind, int rows, int inputs);

 private:
  Buffer storage_;
};

// Where results go, and what is added on the way, in this order; null leaves a step out:
//   r = sum over K;  r = fma(addend_scale, addend, r);  r = r + bias;  r = residual + r
// Column n of the result is out[m * stride + n - column_begin]; so are addend and residual indexed, and
// bias[n - column_begin]. `residual` may be `out` itself: results are then added to what is there.
struct GemmOutput {
  float* out = nullptr;
  size_t stride = 0;
  const float* addend = nullptr;
  size_t addend_stride = 0;
  float addend_scale = 1;
  const float* bias = nullptr;
  const float* residual = nullptr;
  size_t residual_stride = 0;
  int column_begin = 0;  // a multiple of kColumnUnit
  int column_end = -1;   // -1: all
};

// Column ranges start at a multiple of this, which is whole panels of every layout.
inline constexpr int kColumnUnit = 64;

// Tiles [tile_begin, tile_end) of rows by panels [panel_begin, panel_end): one worker's share.
struct GemmPart {
  int panel_begin = 0;
  int panel_end = 0;
  int tile_begin = 0;
  int tile_end = 0;
  bool operator==(const GemmPart&) const = default;
};

// Runs on all of the pool's workers. a.kind() must be the matrix's activation_kind(), a.inputs() its inputs().
void gemm(const KernelTable& table, const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output,
          ThreadPool& pool);

// The same inside a parallel region that is already running: what `worker` of `workers` should compute (contiguous
// panels, or blocks of rows too where there are many rows and few panels; maybe nothing), and computing it.
GemmPart gemm_part(const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output, int worker, int workers);
void gemm_panels(const KernelTable& table, const PackedMatrix& w, const ActivationRows& a, const GemmOutput& output,
                 const GemmPart& part);

}  // namespace quire::kernels
