// A BlockTable holds, for one KV cache group, the manager blocks of every request row: int32 [max_rows, width].
//
// Column c of a row is the block of tokens [c*block, (c+1)*block); null (0) where the request holds none. Storage is
// persistent: rows never move in memory, so kernels may keep pointers across steps. Columns at and beyond a row's count
// are null. Reading past the width gives null, never the next row.
//
// One writer, the engine thread; readers only while it does not write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "quire/error.h"

namespace quire::cache {

class BlockTable {
 public:
  // kInvalidRequest if a size is not positive or the table would have more than 2^31 entries.
  static Result<BlockTable> create(int64_t max_rows, int64_t width);

  int64_t max_rows() const { return std::ssize(counts_); }
  int64_t width() const { return width_; }
  int64_t count(int64_t row) const { return counts_[static_cast<size_t>(row)]; }

  // The row's columns below its count, null ones included.
  std::span<const int32_t> row(int64_t row) const;
  // All `width` columns.
  std::span<const int32_t> full_row(int64_t row) const;
  BlockId at(int64_t row, int64_t column) const;

  // Adds blocks behind the row's last. The row must have room: the caller never holds more than max_model_len needs.
  void append(int64_t row, std::span<const BlockId> blocks);
  void clear(int64_t row);
  // Replaces `to` by `from`, and clears `from`.
  void move(int64_t from, int64_t to);
  void swap(int64_t a, int64_t b);

 private:
  BlockTable(int64_t max_rows, int64_t width);
  int32_t* begin_of(int64_t row) { return blocks_.data() + row * width_; }

  int64_t width_;
  std::vector<int32_t> blocks_;
  std::vector<int64_t> counts_;
};

// Columns a table needs so that whole rows cover a multiple of `align_tokens` tokens: `columns` rounded up.
int64_t aligned_table_width(int64_t columns, int64_t block_size, int64_t align_tokens);

// Which table rows a step reads, in batch order.
struct GatherRows {
  std::span<const int32_t> rows;  // table row of each batch row
  // By batch row: how many leading tokens no token of the step reads (skipped_tokens() of those computed before it).
  // Columns wholly below become null, since their blocks may be freed and handed to another request.
  std::span<const int64_t> skipped;
  int64_t block_size = 1;
};

// Copies the rows of a step into `out`, int32 [out.size() / table.width(), table.width()]. Columns at and beyond a
// row's count keep what `out` held: no token of the step reads them. Rows behind the batch become null.
void gather_rows(const BlockTable& table, const GatherRows& step, std::span<int32_t> out);

}  // namespace quire::cache
