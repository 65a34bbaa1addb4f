#include "cache/block_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache/spec.h"

namespace quire::cache {
namespace {

constexpr int64_t kMaxEntries = int64_t{1} << 31;

}  // namespace

Result<BlockTable> BlockTable::create(int64_t max_rows, int64_t width) {
  if (max_rows < 1 || width < 1 || max_rows > kMaxEntries / width) {
    return fail(
        ErrorKind::kInvalidRequest,
        fmt::format("block table of {} requests by {} blocks: both must be positive and their product at most {}",
                    max_rows, width, kMaxEntries),
        "max_num_seqs");
  }
  return BlockTable(max_rows, width);
}

BlockTable::BlockTable(int64_t max_rows, int64_t width)
    : width_(width), blocks_(static_cast<size_t>(max_rows * width)), counts_(static_cast<size_t>(max_rows)) {}

std::span<const int32_t> BlockTable::row(int64_t row) const {
  return full_row(row).first(static_cast<size_t>(count(row)));
}

std::span<const int32_t> BlockTable::full_row(int64_t row) const {
  QUIRE_CHECK(row >= 0 && row < max_rows());
  return {blocks_.data() + row * width_, static_cast<size_t>(width_)};
}

BlockId BlockTable::at(int64_t row, int64_t column) const {
  const auto blocks = full_row(row);
  return column >= 0 && column < width_ ? BlockId{blocks[static_cast<size_t>(column)]} : kNullBlock;
}

void BlockTable::append(int64_t row, std::span<const BlockId> blocks) {
  QUIRE_CHECK(row >= 0 && row < max_rows());
  auto& count = counts_[static_cast<size_t>(row)];
  QUIRE_CHECK(std::ssize(blocks) <= width_ - count);
  std::ranges::transform(blocks, begin_of(row) + count, &BlockId::value);
  count += std::ssize(blocks);
}

void BlockTable::clear(int64_t row) {
  QUIRE_CHECK(row >= 0 && row < max_rows());
  auto& count = counts_[static_cast<size_t>(row)];
  std::fill_n(begin_of(row), count, kNullBlock.value);
  count = 0;
}

void BlockTable::move(int64_t from, int64_t to) {
  if (from == to) return;
  clear(to);
  swap(from, to);
}

void BlockTable::swap(int64_t a, int64_t b) {
  QUIRE_CHECK(a >= 0 && a < max_rows() && b >= 0 && b < max_rows());
  auto& count_a = counts_[static_cast<size_t>(a)];
  auto& count_b = counts_[static_cast<size_t>(b)];
  std::swap_ranges(begin_of(a), begin_of(a) + std::max(count_a, count_b), begin_of(b));
  std::swap(count_a, count_b);
}

int64_t aligned_table_width(int64_t columns, int64_t block_size, int64_t align_tokens) {
  return round_up(columns, align_tokens / std::gcd(align_tokens, block_size));
}

void gather_rows(const BlockTable& table, const GatherRows& step, std::span<int32_t> out) {
  const auto width = static_cast<size_t>(table.width());
  QUIRE_CHECK(out.size() % width == 0 && step.rows.size() <= out.size() / width);
  QUIRE_CHECK(step.skipped.size() == step.rows.size());
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const auto blocks = table.row(step.rows[i]);
    const auto target = out.subspan(i * width, width);
    std::ranges::copy(blocks, target.begin());
    const int64_t unread = std::min<int64_t>(step.skipped[i] / step.block_size, std::ssize(blocks));
    std::fill_n(target.begin(), unread, kNullBlock.value);
  }
  std::ranges::fill(out.subspan(step.rows.size() * width), kNullBlock.value);
}

}  // namespace quire::cache
