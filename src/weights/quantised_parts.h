// The parts in which safetensors checkpoints keep a quantised matrix, X.weight [N out, K in], found and checked.
//
//   kAwq     X.qweight [K, N / 8], X.qzeros [G, N / 8], X.scales [G, N]: eight neighbouring outputs in an I32, in the
//            order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest four bits on
//   kGptq    X.qweight [K / p, N], X.qzeros [G, N / p], X.scales [G, N], X.g_idx [K]: p = 32 / bits neighbouring inputs
//            (of qzeros: outputs) in an I32, from the lowest bits on
//   kPacked  X.weight_packed [N, K / p rounded up], X.weight_scale, X.weight_shape [2],
//            X.weight_zero_point [N / p rounded up, G], X.weight_g_idx [K]: as kGptq, of compressed-tensors
//   kInt8    X.weight I8, X.weight_scale, X.weight_zero_point I8 like the scale, X.weight_g_idx [K]
//   kFp8     X.weight F8_E4M3, X.weight_scale or X.weight_scale_inv, X.weight_zero_point of zeros
//   kMxfp4   X_blocks U8 [N, K / 32, 16], X_scales U8 [N, K / 32], or stacks of both, [S, N, ...]: two neighbouring
//            inputs (E2M1) in a byte, the first in its low bits, and powers of two (E8M0). The matrix is called X
//
// G groups of neighbouring inputs share a scale and a zero point, or those inputs to which g_idx gives the same number.
// Files are not trusted: parts whose dtypes or shapes do not fit together, groups that there are not, and parts that a
// layout has no use for, are errors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "weights/safetensors.h"

namespace quire::weights {

// What a checkpoint's configuration says of its quantised matrices.
struct QuantisationScheme {
  enum class Layout : uint8_t { kAwq, kGptq, kPacked, kInt8, kFp8, kMxfp4 };

  Layout layout = Layout::kAwq;
  int bits = 4;                 // of an integer: 4 or 8
  bool symmetric = false;       // every zero point is half the range; files may leave them out
  bool zeros_less_one = false;  // kGptq: zero points are stored less one
  int64_t group_rows = 1;       // outputs that share a scale; 0: all of them. Not 1 in kInt8 and kFp8 alone
  std::optional<int64_t> group_inputs =
      std::nullopt;  // inputs that share a scale, integers: a multiple of 32; none: all of them
};

// "GPTQ, 4 bits, symmetric, groups of 128", for messages.
std::string describe(const QuantisationScheme& scheme);

// The parts of one matrix. Views of the files.
struct MatrixParts {
  QuantisationScheme scheme;
  int64_t stack = 0;   // S; 0: one matrix
  int64_t rows = 0;    // N, of all S
  int64_t cols = 0;    // K
  int64_t groups = 0;  // G
  StoredTensor integers, scales;
  std::optional<StoredTensor> zeros;         // none: symmetric
  std::optional<StoredTensor> input_groups;  // g_idx; none: neighbours are a group
};

// What may stand beside the integers of a matrix, of any layout.
inline constexpr std::array<std::string_view, 9> kPartSuffixes = {
    ".qzeros",       ".scales",       ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_zero_point",
    ".weight_shape", ".weight_g_idx", "_scales"};

// What the name of a matrix's integers ends with behind X: ".qweight" for kGptq.
std::string_view integers_suffix(QuantisationScheme::Layout layout);

// The parts of the matrix, `module` being X. kCorruptFile or kUnsupported name the tensor at fault.
Result<MatrixParts> find_parts(const SafetensorsFiles& files, std::string_view module,
                               const QuantisationScheme& scheme);

}  // namespace quire::weights
