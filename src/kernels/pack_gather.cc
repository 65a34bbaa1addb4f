// One row of a packed matrix, widened to fp32. Every step is exact but the last addition of a minimum, which the file's
// own meaning rounds in the same way: d, factor and weight together have at most 24 significant bits.
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/pack.h"

namespace quire::kernels {
namespace {

template <class T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float read_half(const std::byte* p) { return half_to_float(read<uint16_t>(p)); }

// Scale of the first and the last 16 inputs of a group, and its minimum.
struct Scales {
  float scale[2];
  float min;
};

Scales read_scales(Layout layout, const std::byte* header, const std::byte* scales, int c) {
  if (has_sub(layout)) {
    const float d = read_half(header + 2 * c);
    const auto low = static_cast<float>(read<int8_t>(scales + c));
    const auto high = static_cast<float>(read<int8_t>(scales + 32 + c));
    return {{d * low, d * high}, 0};
  }
  if (has_super(layout)) {
    const float scale = read_half(header + 2 * c) * static_cast<float>(read<uint8_t>(scales + c));
    const float min = -(read_half(header + 64 + 2 * c) * static_cast<float>(read<uint8_t>(scales + 32 + c)));
    return {{scale, scale}, min};
  }
  const float scale = read_half(scales + 2 * c);
  return {{scale, scale}, has_min(layout) ? read_half(scales + 64 + 2 * c) : 0};
}

void gather_integers(const PackedMatrix& matrix, const std::byte* panel, int c, float* out) {
  const Layout layout = matrix.layout();
  for (int g = 0; g < matrix.inputs() / kGroup; g++) {
    const auto group = static_cast<size_t>(g);
    const std::byte* weights = panel + weights_offset(layout, group);
    const Scales s = read_scales(layout, panel + super_offset(layout, group), weights + weight_bytes(layout), c);
    for (int k = 0; k < kGroup; k++) {
      const int q = stored_weight(layout, weights, c, k);
      const float product = s.scale[k / 16] * static_cast<float>(q - weight_offset(layout));
      out[g * kGroup + k] = has_min(layout) ? product + s.min : product;
    }
  }
}

void gather_floats(const PackedMatrix& matrix, const std::byte* panel, int c, float* out) {
  const auto column = static_cast<size_t>(c);
  for (size_t k = 0; k < static_cast<size_t>(matrix.inputs()); k++) {
    switch (matrix.layout()) {
      case Layout::kF32:
        out[k] = read<float>(panel + (k * 64 + column) * 4);
        break;
      case Layout::kF16:
        out[k] = read_half(panel + (k * 64 + column) * 2);
        break;
      default:
        out[k] = bf16_to_float(read<uint16_t>(panel + (k / 2 * 64 + column) * 4 + k % 2 * 2));
        break;
    }
  }
}

}  // namespace

void gather_row(const PackedMatrix& matrix, int n, float* out) {
  QUIRE_CHECK(n >= 0 && n < matrix.outputs());
  const int columns = panel_columns(matrix.layout());
  const std::byte* panel = matrix.panel(n / columns);
  if (is_integer(matrix.layout())) {
    gather_integers(matrix, panel, n % columns, out);
  } else {
    gather_floats(matrix, panel, n % columns, out);
  }
}

}  // namespace quire::kernels
