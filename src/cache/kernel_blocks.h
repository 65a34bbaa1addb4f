// A kernel may address pages smaller than a manager block: its *kernel blocks*. Kernel block j of manager block b is
// page
//   b * pages_between_blocks + j,   j < pages_per_block,
// of a view whose pages lie `page_bytes` apart, so one kernel reads any layout through one mapped table. A page holds
// [heads, states, bytes of a state] as a private tile of the kernel; manager code never looks inside. Row o of block b
// (slot b*states + o) is row o % page_states of page b*S + o / page_states.
//
// Where heads lie apart (LHBNC, BHLNC) a page is one head's tile and head h adds h * head_bytes.
//
// All of it is pure but MappedTable, a persistent buffer: one per micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/layout.h"
#include "cache/planner.h"
#include "cache/spec.h"
#include "quire/error.h"

namespace quire::cache {

// The page sizes, in tokens, that one kernel takes.
struct KernelBlockSizes {
  std::vector<int64_t> exact;
  std::vector<int64_t> multiples_of;  // any multiple of one of these

  bool takes(int64_t tokens) const;
};

// The manager's size if every kernel takes it; else the largest exact size of any kernel that divides it and that all
// take. kUnsupported, naming the sizes, if there is none.
Result<int64_t> select_kernel_block(int64_t block_size, std::span<const KernelBlockSizes> kernels);

// The stride alignment that lets a kernel's blocks tile packed manager blocks: none if it takes multiples, or if the
// spec already asks for one.
StrideAlignment stride_alignment_for(const KernelBlockSizes& kernel, const StrideAlignment& current);

// How a kernel addresses one layer.
struct KernelView {
  int64_t page_states = 0;           // rows in a page
  int64_t pages_per_block = 1;       // r
  int64_t pages_between_blocks = 1;  // S >= r
  int64_t num_pages = 0;             // (blocks - 1) * S + r
  int64_t page_bytes = 0;            // from one page to the next
  int64_t head_bytes = 0;            // from one head's rows to the next head's
};

// kUnsupported if pages of `kernel_block` tokens do not tile the layer's blocks: the block stride is no multiple of the
// page, rows of several heads interleave, or a compressed state has several heads (its rows are written singly, through
// slots).
Result<KernelView> view_kernel_blocks(Layout layout, const LayerPlace& place, int64_t num_blocks, int64_t kernel_block);

// Maps rows of manager blocks, [rows, columns], to pages, [rows, columns * r]. `out` has exactly that size.
void map_kernel_blocks(std::span<const int32_t> blocks, const KernelView& view, std::span<int32_t> out);

// The mapped table of one attention group, int32 [max_rows, columns * r]. Rows keep their place in memory.
class MappedTable {
 public:
  // kInvalidRequest if it would have more than 2^31 entries.
  static Result<MappedTable> create(int64_t max_rows, int64_t columns, const KernelView& view);

  // Maps `blocks`, [n, columns] with n = used.size() <= max_rows, to the first n rows: of row i the first used[i]
  // columns. What lies behind them stays as it was; no token of the step reads it.
  void update(std::span<const int32_t> blocks, std::span<const int32_t> used);

  // The pages of a row, columns * r of them.
  std::span<const int32_t> row(int64_t row) const;
  int64_t width() const { return columns_ * view_.pages_per_block; }
  int64_t max_rows() const { return std::ssize(pages_) / width(); }

 private:
  MappedTable(int64_t max_rows, int64_t columns, const KernelView& view);

  int64_t columns_;
  KernelView view_;
  std::vector<int32_t> pages_;
};

}  // namespace quire::cache
