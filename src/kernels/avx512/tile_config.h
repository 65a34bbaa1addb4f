// What _tile_loadconfig reads: the shape of each of the eight tile registers.
//
// Everything has internal linkage, as in all files of one instruction set.
#pragma once

#include <array>
#include <cstdint>

namespace quire::kernels::avx512 {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 for sums of `rows` rows, 4 and 5 for their numbers, `number_bytes` a row, 6 and 7 for what these are
// multiplied with: a row holds 4 bytes' worth of numbers for each of 16 columns.
constexpr TileConfig tile_config(int rows, int number_bytes) {
  TileConfig c;
  for (int i = 0; i < 8; i++) {
    c.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? number_bytes : 64);
    c.rows[i] = static_cast<uint8_t>(i < 6 ? rows : number_bytes / 4);
  }
  return c;
}

constexpr int kTileRegisterRows = 16;

// For blocks of 32 bf16 numbers, by how many rows there are.
constexpr std::array<TileConfig, kTileRegisterRows + 1> kBf16Tiles = [] {
  std::array<TileConfig, kTileRegisterRows + 1> configs;
  for (int rows = 0; rows <= kTileRegisterRows; rows++) configs[static_cast<size_t>(rows)] = tile_config(rows, 64);
  return configs;
}();

}  // namespace
}  // namespace quire::kernels::avx512
