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

// Field c of 32.
template <class T>
float read_factor(const std::byte* p, int c) {
  return static_cast<float>(read<T>(p + c));
}

// Scale and minimum of the first and the last 16 inputs of a group.
struct Scales {
  float scale[2];
  float min[2];
};

Scales read_scales(Layout layout, const std::byte* header, const std::byte* scales, int c) {
  if (!has_super(layout)) {
    const float scale =
        layout == Layout::kInt4Mx ? bf16_to_float(read<uint16_t>(scales + 2 * c)) : read_half(scales + 2 * c);
    const float min = has_min(layout) ? read_half(scales + 64 + 2 * c) : 0;
    return {{scale, scale}, {min, min}};
  }
  const float d = read_half(header + 2 * c);
  const float dmin = has_min(layout) ? -read_half(header + 64 + 2 * c) : 0;
  if (layout == Layout::kInt2Sub) {
    const int fields[2] = {read<uint8_t>(scales + c), read<uint8_t>(scales + 32 + c)};
    const auto times = [](float x, int factor) { return x * static_cast<float>(factor); };
    return {{times(d, fields[0] & 15), times(d, fields[1] & 15)},
            {times(dmin, fields[0] >> 4), times(dmin, fields[1] >> 4)}};
  }
  if (has_sub(layout)) return {{d * read_factor<int8_t>(scales, c), d * read_factor<int8_t>(scales + 32, c)}, {0, 0}};
  if (layout == Layout::kInt4TableSuper) {
    const float scale = d * read_factor<int8_t>(scales, c);
    return {{scale, scale}, {0, 0}};
  }
  const float scale = d * read_factor<uint8_t>(scales, c);
  const float min = dmin * read_factor<uint8_t>(scales + 32, c);
  return {{scale, scale}, {min, min}};
}

void gather_integers(const PackedMatrix& matrix, const std::byte* panel, int c, float* out) {
  const Layout layout = matrix.layout();
  for (int g = 0; g < matrix.inputs() / kGroup; g++) {
    const auto group = static_cast<size_t>(g);
    const std::byte* weights = panel + weights_offset(layout, group);
    const Scales s = read_scales(layout, panel + super_offset(layout, group), weights + weight_bytes(layout), c);
    for (int k = 0; k < kGroup; k++) {
      const float product = s.scale[k / 16] * static_cast<float>(weight_value(layout, weights, c, k));
      out[g * kGroup + k] = has_min(layout) ? product + s.min[k / 16] : product;
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
