#include "cache/block_table.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace quire::cache {
namespace {

std::vector<BlockId> blocks(std::initializer_list<int32_t> values) {
  std::vector<BlockId> out;
  for (const int32_t v : values) out.emplace_back(v);
  return out;
}

TEST(CacheFaults, ATableReadPastItsWidthGivesNull) {
  auto table = BlockTable::create(2, 3).value();
  table.append(0, blocks({4, 5}));
  table.append(1, blocks({6, 7, 8}));
  EXPECT_EQ(table.at(0, 1), BlockId{5});
  EXPECT_EQ(table.at(0, 2), kNullBlock);
  EXPECT_EQ(table.at(0, 3), kNullBlock);  // not the neighbour's block 6
  EXPECT_EQ(table.at(1, -1), kNullBlock);
  EXPECT_EQ(table.row(0).size(), 2U);
  EXPECT_EQ(table.full_row(0).size(), 3U);
}

TEST(BlockTable, RefusesImpossibleSizes) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{0, 1}, {1, 0}, {-1, 4}, {int64_t{1} << 40, 1 << 20}}) {
    const auto table = BlockTable::create(rows, width);
    ASSERT_FALSE(table.has_value());
    EXPECT_EQ(table.error().param, "max_num_seqs");
  }
}

TEST(BlockTable, RowsStayInPlace) {
  auto table = BlockTable::create(3, 4).value();
  table.append(1, blocks({2}));
  const int32_t* before = table.full_row(1).data();
  table.append(1, blocks({3, 4, 5}));
  table.clear(1);
  EXPECT_EQ(table.full_row(1).data(), before);
}

TEST(BlockTable, AlignsItsWidth) {
  EXPECT_EQ(aligned_table_width(7, 16, 128), 8);
  EXPECT_EQ(aligned_table_width(3, 20, 128), 32);
  EXPECT_EQ(aligned_table_width(2, 1024, 128), 2);
  EXPECT_EQ(aligned_table_width(7, 16, 1), 7);
}

// Random operations against rows kept as plain vectors.
TEST(BlockTable, MatchesPlainVectors) {
  EXPECT_TRUE(rc::check([] {
    constexpr int64_t kRows = 4;
    constexpr int64_t kWidth = 5;
    auto table = BlockTable::create(kRows, kWidth).value();
    std::vector<std::vector<BlockId>> model(kRows);
    const auto steps = *rc::gen::inRange(0, 60);
    for (int i = 0; i < steps; ++i) {
      const auto a = *rc::gen::inRange<int64_t>(0, kRows);
      const auto b = *rc::gen::inRange<int64_t>(0, kRows);
      auto& row_a = model[static_cast<size_t>(a)];
      auto& row_b = model[static_cast<size_t>(b)];
      switch (*rc::gen::inRange(0, 4)) {
        case 0:
          if (std::ssize(row_a) < kWidth) {
            row_a.emplace_back(*rc::gen::inRange(0, 100));
            table.append(a, {&row_a.back(), 1});
          }
          break;
        case 1:
          table.clear(a);
          row_a.clear();
          break;
        case 2:
          table.move(a, b);
          if (a != b) row_b = std::exchange(row_a, {});
          break;
        default:
          table.swap(a, b);
          std::swap(row_a, row_b);
      }
      for (int64_t r = 0; r < kRows; ++r) {
        const auto& want = model[static_cast<size_t>(r)];
        RC_ASSERT(table.count(r) == std::ssize(want));
        for (int64_t c = 0; c < kWidth + 2; ++c) {
          RC_ASSERT(table.at(r, c) == (c < std::ssize(want) ? want[static_cast<size_t>(c)] : kNullBlock));
        }
      }
    }
  }));
}

}  // namespace
}  // namespace quire::cache
