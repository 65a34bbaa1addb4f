#include "kernels/roofline.h"

#include <gtest/gtest.h>

#include "kernels/test_tables.h"

namespace quire::kernels {
namespace {

MachinePeaks peaks() {
  MachinePeaks p{.bytes = 10, .cached_bytes = 100};
  p.operations[static_cast<size_t>(Unit::kF32)] = 4;
  p.operations[static_cast<size_t>(Unit::kInt8)] = 16;
  return p;
}

TEST(Roofline, WhatTakesLongestDecides) {
  Work work{.bytes = 50, .cached_bytes = 100, .operations = operations_of(Unit::kInt8, 32)};
  EXPECT_EQ(roof_of(work, peaks()).bound, Bound::kMemory);
  EXPECT_DOUBLE_EQ(roof_of(work, peaks()).seconds, 5);
  work.cached_bytes = 600;
  EXPECT_EQ(roof_of(work, peaks()).bound, Bound::kCache);
  EXPECT_DOUBLE_EQ(roof_of(work, peaks()).seconds, 6);
  work += {.operations = operations_of(Unit::kF32, 20)};  // after the integers: 2 + 5 seconds
  EXPECT_EQ(roof_of(work, peaks()).bound, Bound::kCompute);
  EXPECT_DOUBLE_EQ(roof_of(work, peaks()).seconds, 7);
  EXPECT_DOUBLE_EQ(work.all_bytes(), 650);
  EXPECT_DOUBLE_EQ(work.all_operations(), 52);
}

TEST(Roofline, NoTimeWhereNoPeakIsKnown) {
  const Work work{.operations = operations_of(Unit::kTileBF16, 1e9)};
  EXPECT_EQ(roof_of(work, peaks()).seconds, 0);
  EXPECT_EQ(roof_of({}, {}).seconds, 0);
}

// A unit with tiles is named where, and only where, the products use them.
TEST(Roofline, UnitsAreThoseOfTheTable) {
  for (const KernelTable& table : test_tables()) {
    for (const int rows : {1, 3, 4, 31, 32, 512}) {
      const bool bf16 = table.wide_bf16 != nullptr && rows >= 4, int8 = table.wide_int8 != nullptr && rows >= 32;
      EXPECT_EQ(unit_of(table, ActivationKind::kBF16, rows), bf16 ? Unit::kTileBF16 : Unit::kBF16);
      EXPECT_EQ(unit_of(table, ActivationKind::kInt8, rows), int8 ? Unit::kTileInt8 : Unit::kInt8);
      EXPECT_EQ(unit_of(table, ActivationKind::kF32, rows), Unit::kF32);
      EXPECT_EQ(attention_unit(table, DType::kF32, rows), Unit::kF32);
    }
    EXPECT_EQ(attention_unit(table, DType::kBF16, 1), Unit::kBF16);
  }
}

}  // namespace
}  // namespace quire::kernels
