// How write_kv() lays out pages.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention_world.h"

namespace quire::kernels {
namespace {

// The layout that attention.h describes, number by number; other bytes are not touched.
TEST(AttentionWrite, Layout) {
  for (const KernelTable& table : test_tables())
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (const int head_dim : {8, 24, 64, 80, 192}) {
        const AttentionShape shape = shape_of(head_dim, 32, 1, 2, dtype);
        const int per = dtype == DType::kF32 ? 1 : 2, size = static_cast<int>(size_of(dtype));
        Allocator memory;
        auto buffer = memory.allocate(kv_head_bytes(dtype, 32, head_dim) * 2 * 8);
        ASSERT_TRUE(buffer);
        std::memset(buffer->data(), 0xa5, buffer->size());
        std::vector<std::byte> want(buffer->data(), buffer->data() + buffer->size());
        KvView view = {.base = buffer->data(),
                       .page_stride = buffer->size() / 8,
                       .head_stride = buffer->size() / 16,
                       .block_tokens = 64,
                       .pages_per_block = 3};
        std::mt19937 rng(2);
        // Runs, single tokens, halves of pairs, skipped ones, a page's edge.
        const std::vector<int64_t> slots = {64, 65, 66, -1, 71, 95, 96, 97, 127, -1, 3, 0, 18, 17};
        const auto k = random_numbers(slots.size() * static_cast<size_t>(head_dim) * 2 + 100, rng);
        const auto v = random_numbers(k.size(), rng);
        const auto stride = static_cast<size_t>(head_dim) * 2 + 3;
        const auto put = [&](size_t tile, size_t element, float x) {
          if (dtype == DType::kF32) {
            std::memcpy(&want[tile + element * 4], &x, 4);
          } else {
            const uint16_t b = float_to_bf16(x);
            std::memcpy(&want[tile + element * 2], &b, 2);
          }
        };
        for (size_t t = 0; t < slots.size(); t++)
          for (int h = 0; h < 2; h++)
            for (int d = 0; d < head_dim && slots[t] >= 0; d++) {
              const int64_t offset = slots[t] % 64, page = slots[t] / 64 * 3 + offset / 32;
              const int place = static_cast<int>(offset % 32), block = d / 64,
                        width = std::min(64, head_dim - block * 64);
              const size_t tile =
                  static_cast<size_t>(page) * view.page_stride + static_cast<size_t>(h) * view.head_stride;
              put(tile, static_cast<size_t>((d / per * 32 + place) * per + d % per),
                  k[t * stride + static_cast<size_t>(h * head_dim + d)]);
              put(tile + static_cast<size_t>(32 * head_dim * size),
                  static_cast<size_t>(block * 64 * 32 + (place / per * width + d % 64) * per + place % per),
                  v[t * stride + static_cast<size_t>(h * head_dim + d)]);
            }
        ThreadPool pool(2);
        write_kv(table, shape, view,
                 {.slots = slots, .k = k.data(), .v = v.data(), .k_stride = stride, .v_stride = stride}, pool);
        EXPECT_EQ(std::memcmp(want.data(), buffer->data(), want.size()), 0) << name_of(table.isa) << " " << head_dim;
      }
}

// One row of K and V in int8: the integers where attention.h says, then the scales.
TEST(AttentionWrite, Int8LayoutAndHardRows) {
  constexpr int kDim = 72, kPage = 32, kPlace = 19;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::mt19937 rng(4);
  auto plain = random_numbers(kDim, rng);
  auto even = std::vector<float>(kDim, 0.5F);  // 0.5 * 127 is rounded to even
  even[1] = 1;
  auto broken = plain, endless = plain;
  broken[70] = nan;
  endless[3] = -infinity;
  const std::vector<float> tiny(kDim, 9e-31F), huge(kDim, -3.4e38F);
  for (const KernelTable& table : test_tables())
    for (const auto& row : {plain, even, broken, endless, tiny, huge}) {
      const AttentionShape shape = shape_of(kDim, kPage, 1, 1, DType::kI8);
      Allocator memory;
      auto buffer = memory.allocate(kv_head_bytes(DType::kI8, kPage, kDim));
      ASSERT_TRUE(buffer);
      ASSERT_EQ(buffer->size(), static_cast<size_t>(kPage * (2 * kDim + 8)));
      std::memset(buffer->data(), 0xa5, buffer->size());
      std::vector<std::byte> want(buffer->data(), buffer->data() + buffer->size());
      float peak = 0;
      bool finite = true;
      for (const float x : row) {
        peak = std::max(peak, std::abs(x));
        finite = finite && std::isfinite(x);
      }
      const bool zero = !finite || peak < 1e-30F;
      for (size_t d = 0; d < kDim; d++) {
        const auto q = static_cast<std::byte>(zero ? 0 : static_cast<int8_t>(std::nearbyint(row[d] * (127 / peak))));
        const size_t block = d / 64, width = block == 0 ? 64 : 8;
        want[(d / 2 * kPage + kPlace) * 2 + d % 2] = q;
        want[kDim * kPage + block * 64 * kPage + (kPlace / 2 * width + d % 64) * 2 + kPlace % 2] = q;
      }
      const float scale = !finite ? nan : zero ? 0 : peak / 127;
      std::memcpy(&want[2 * kDim * kPage + kPlace * 4], &scale, 4);
      std::memcpy(&want[2 * kDim * kPage + (kPage + kPlace) * 4], &scale, 4);
      const KvView view = {.base = buffer->data(),
                           .page_stride = buffer->size(),
                           .head_stride = 0,
                           .block_tokens = kPage,
                           .pages_per_block = 1};
      const int64_t slots[] = {kPlace};
      ThreadPool pool(1);
      write_kv(table, shape, view,
               {.slots = slots, .k = row.data(), .v = row.data(), .k_stride = kDim, .v_stride = kDim}, pool);
      EXPECT_EQ(std::memcmp(want.data(), buffer->data(), want.size()), 0) << name_of(table.isa) << " " << row[0];
    }
}

TEST(AttentionWrite, RoundingOfHardNumbers) {
  const float hard[16] = {0.0F,
                          -0.0F,
                          1.00390625F,
                          1.01171875F,
                          -1.00390625F,
                          3.4e38F,
                          -3.4e38F,
                          1e-38F,
                          1.17e-38F,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          std::bit_cast<float>(0x7f800001U),
                          std::bit_cast<float>(0xff800001U),
                          std::bit_cast<float>(0x007fffffU),
                          1e-45F};
  for (const KernelTable& table : test_tables()) {
    const AttentionShape shape = shape_of(16, 16, 1);
    Allocator memory;
    auto buffer = memory.allocate(kv_head_bytes(DType::kBF16, 16, 16));
    const KvView view = {.base = buffer->data(),
                         .page_stride = buffer->size(),
                         .head_stride = 0,
                         .block_tokens = 16,
                         .pages_per_block = 1};
    const int64_t slots[] = {0};
    ThreadPool pool(1);
    write_kv(table, shape, view, {.slots = slots, .k = hard, .v = hard, .k_stride = 16, .v_stride = 16}, pool);
    for (size_t d = 0; d < 16; d++) {
      uint16_t k = 0;
      std::memcpy(&k, buffer->data() + (d / 2 * 16) * 4 + d % 2 * 2, 2);
      EXPECT_EQ(k, float_to_bf16(hard[d])) << d << " " << name_of(table.isa);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
