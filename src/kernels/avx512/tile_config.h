// What _tile_loadconfig reads: the shape of each of the eight tile registers.
#pragma once

#include <cstdint>

namespace quire::kernels::avx512 {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace quire::kernels::avx512
