// Floats rounded into blocks of 32, for checkpoints that are to be held in fewer bits than their files have.
//
// Pure functions of the 32 numbers of a block: the same bytes on every machine and thread, also when denormals are
// flushed.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "weights/format.h"

namespace quire::weights {

inline constexpr int kQuantisedBlock = 32;  // elements

// Names the rules below for fingerprints: a change of what they give is another name.
inline constexpr std::string_view kQuantiseMethod = "quire-round-1";

// Writes the block that holds `numbers`. kQ8_0: GGML's rule, the largest magnitude over 127. kQ4_0: of several scales
// the one with the least squared error, fitted once more to the integers that it gave. A block whose numbers are all
// below 1e-7 becomes zeros; GGML's has other integers, and the same values. A number that is not finite makes the whole
// block NaN; a scale beyond fp16 makes it infinite or NaN.
void quantise_block(WeightFormat format, std::span<const float, kQuantisedBlock> numbers, std::span<std::byte> block);

}  // namespace quire::weights
