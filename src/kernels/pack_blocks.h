// The integers and scales of quantised blocks, as files hold them, group by group of 32.
//
// decode_group() splits a block into what the packed layouts store: unsigned weights, fp16 fields and small factors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm_layout.h"
#include "weights/format.h"

namespace quire::kernels {

struct DecodedGroup {
  uint8_t weights[kGroup];  // as the native layout stores them
  uint16_t d = 0;           // scale, of the group or its super-block: fp16, of MXFP4 bf16
  uint16_t m = 0;           // fp16 minimum, or dmin of the super-block
  uint8_t factor[2] = {};   // super-blocks: of d and of dmin; ...Sub: one for each 16 inputs
};

// Group g of a row of blocks. `format` is a quantised one.
DecodedGroup decode_group(weights::WeightFormat format, const std::byte* row, int g);

}  // namespace quire::kernels
