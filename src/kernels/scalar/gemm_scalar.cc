// The readable reference: one output after the other, straight from the packed bytes. Every other file gives its bits.
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "kernels/gemm_kernels.h"

namespace quire::kernels {
namespace {

template <class T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float read_half(const std::byte* p) { return half_to_float(read<uint16_t>(p)); }

// s_w: with a super-block the product of its fp16 and a small factor, exact in fp32.
template <Layout L>
float weight_scale(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (L == Layout::kInt4Mx) return bf16_to_float(read<uint16_t>(scales + 2 * c));
  if constexpr (L == Layout::kInt4TableSuper) {
    return read_half(header + 2 * c) * static_cast<float>(read<int8_t>(scales + c));
  }
  if constexpr (has_sub(L)) return read_half(header + 2 * c);
  if constexpr (has_super(L)) return read_half(header + 2 * c) * static_cast<float>(read<uint8_t>(scales + c));
  return read_half(scales + 2 * c);
}

template <Layout L>
float weight_min(const std::byte* header, const std::byte* scales, int c) {
  if constexpr (has_super(L)) {
    return -(read_half(header + 64 + 2 * c) * static_cast<float>(read<uint8_t>(scales + 32 + c)));
  }
  return read_half(scales + 64 + 2 * c);
}

// acc with the minimum of one group added.
template <Layout L>
float add_min(const std::byte* header, const std::byte* scales, int c, const GroupMeta& meta, float acc) {
  if constexpr (L == Layout::kInt2Sub) {
    int32_t sum = 0;
    for (int half = 0; half < 2; half++) {
      sum += (read<uint8_t>(scales + 32 * half + c) >> 4) * meta.minus_32_sum[half];
    }
    return std::fma(read_half(header + 64 + 2 * c) * (1.F / 32) * meta.scale, static_cast<float>(sum), acc);
  }
  return std::fma(weight_min<L>(header, scales, c), meta.scaled_sum, acc);
}

// The exact integer part of one group: a dot product, or for 16-wide scales two, times those.
template <Layout L>
int32_t group_dot(const std::byte* a, const std::byte* weights, const std::byte* scales, int c) {
  int32_t half[2] = {0, 0};
  for (int k = 0; k < kGroup; k++) half[k / 16] += read<int8_t>(a + k) * weight_value(L, weights, c, k);
  if constexpr (L == Layout::kInt2Sub) {
    return half[0] * (read<uint8_t>(scales + c) & 15) + half[1] * (read<uint8_t>(scales + 32 + c) & 15);
  }
  if constexpr (has_sub(L)) {
    return half[0] * read<int8_t>(scales + c) + half[1] * read<int8_t>(scales + 32 + c);
  }
  return half[0] + half[1];
}

// Rule 4.
template <Layout L>
void integer_tile(const TileArgs& t) {
  const auto rows = static_cast<size_t>(t.rows);
  for (size_t r = 0; r < rows; r++) {
    for (int c = 0; c < panel_columns(L); c++) {
      float acc = 0;
      for (auto g = static_cast<size_t>(t.begin / kGroup); g < static_cast<size_t>(t.end / kGroup); g++) {
        const std::byte* a = t.a + g * rows * kGroupRowBytes;
        const auto meta = read<GroupMeta>(a + rows * kGroup + r * sizeof(GroupMeta));
        const std::byte* header = t.panel + super_offset(L, g);
        const std::byte* weights = t.panel + weights_offset(L, g);
        const std::byte* scales = weights + weight_bytes(L);
        const int32_t dot = group_dot<L>(a + r * kGroup, weights, scales, c);
        acc = std::fma(weight_scale<L>(header, scales, c) * meta.scale, static_cast<float>(dot), acc);
        if constexpr (has_min(L)) acc = add_min<L>(header, scales, c, meta, acc);
      }
      t.sums[r * panel_columns(L) + static_cast<size_t>(c)] = acc;
    }
  }
}

// Weight k of column c.
template <Layout L>
float float_weight(const std::byte* panel, size_t k, size_t c) {
  if constexpr (L == Layout::kF32) return read<float>(panel + (k * 64 + c) * 4);
  if constexpr (L == Layout::kF16) return read_half(panel + (k * 64 + c) * 2);
  return bf16_to_float(read<uint16_t>(panel + (k / 2 * 64 + c) * 4 + k % 2 * 2));
}

// Goes on with `acc` over inputs begin, begin + step, and so on.
template <Layout L>
float chain(const std::byte* a, const std::byte* panel, size_t c, size_t begin, size_t end, size_t step, float acc) {
  for (size_t k = begin; k < end; k += step) {
    acc = std::fma(read<float>(a + k * 4), float_weight<L>(panel, k, c), acc);
  }
  return acc;
}

// Rule 1.
template <Layout L>
float float_sum(const std::byte* a, const std::byte* panel, size_t c, size_t begin, size_t end) {
  if constexpr (L != Layout::kBF16) return chain<L>(a, panel, c, begin, end, 1, 0);
  float acc = 0;
  for (size_t k = begin; k < end; k += kGroup) {
    const float even = chain<L>(a, panel, c, k, k + kGroup, 2, 0);
    const float odd = chain<L>(a, panel, c, k + 1, k + kGroup, 2, 0);
    acc = acc + (even + odd);
  }
  return acc;
}

template <Layout L>
void float_tile(const TileArgs& t) {
  for (size_t r = 0; r < static_cast<size_t>(t.rows); r++) {
    for (size_t c = 0; c < 64; c++) {
      t.sums[r * 64 + c] =
          float_sum<L>(t.a + r * t.a_pitch, t.panel, c, static_cast<size_t>(t.begin), static_cast<size_t>(t.end));
    }
  }
}

// Rule 11: ((0+1)+(2+3))+((4+5)+(6+7)) of slices `stride` floats apart.
float slice_sum(const float* sums, size_t stride, int slices) {
  if (slices == 1) return *sums;
  const int half = slices / 2;
  return slice_sum(sums, stride, half) + slice_sum(sums + static_cast<size_t>(half) * stride, stride, half);
}

void mix(const FinishArgs& f) {
  for (size_t r = 0; r < static_cast<size_t>(f.rows); r++) {
    for (size_t s = 0; s < static_cast<size_t>(f.slices); s++) {
      const float* sums = f.sums + s * f.slice_stride + r * static_cast<size_t>(f.width);
      float* out = f.out + s * f.mix_stride + static_cast<size_t>(f.mix_rows[r]) * f.out_stride;
      for (size_t c = 0; c < static_cast<size_t>(f.columns); c++) out[c] = std::fma(f.mix_weights[r], sums[c], out[c]);
    }
  }
}

void finish(const FinishArgs& f) {
  if (f.mix_weights != nullptr) return mix(f);
  for (size_t r = 0; r < static_cast<size_t>(f.rows); r++) {
    for (size_t c = 0; c < static_cast<size_t>(f.columns); c++) {
      float value = slice_sum(f.sums + r * static_cast<size_t>(f.width) + c, f.slice_stride, f.slices);
      if (f.addend != nullptr) value = std::fma(f.addend_scale, f.addend[r * f.addend_stride + c], value);
      if (f.bias != nullptr) value = value + f.bias[c];
      if (f.residual != nullptr) value = f.residual[r * f.residual_stride + c] + value;
      f.out[r * f.out_stride + c] = value;
    }
  }
}

GroupMeta quantise_group(const float* x, std::byte* q) {
  uint32_t largest = 0;  // magnitudes order like their bits, infinity and NaN above all
  for (int k = 0; k < kGroup; k++) largest = std::max(largest, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffU);
  const auto amax = std::bit_cast<float>(largest);
  const bool finite = largest < 0x7f800000U;
  const bool zero = !finite || amax < 1e-30F;
  const float inverse = zero ? 0.F : 127.F / amax;
  const float scale = !finite ? std::bit_cast<float>(0x7fc00000U) : zero ? 0.F : amax / 127.F;
  int32_t sum[2] = {0, 0};
  for (int k = 0; k < kGroup; k++) {
    const int value = zero ? 0 : static_cast<int>(std::nearbyint(x[k] * inverse));
    q[k] = static_cast<std::byte>(value);
    sum[k / 16] += value;
  }
  const int32_t both = sum[0] + sum[1];
  return {scale, scale * static_cast<float>(both), -8 * both, -128 * both, {-32 * sum[0], -32 * sum[1]}};
}

void quantise_row(const float* x, int k, std::byte* q, std::byte* meta, size_t step) {
  for (size_t g = 0; g < static_cast<size_t>(k / kGroup); g++) {
    const GroupMeta record = quantise_group(x + g * kGroup, q + g * step);
    std::memcpy(meta + g * step, &record, sizeof record);
  }
}

void round_row(const float* x, int k, std::byte* out) {
  for (int i = 0; i < k || i % kGroup != 0; i++) {
    const float value = i < k ? bf16_to_float(float_to_bf16(x[i])) : 0.F;
    std::memcpy(out + i * 4, &value, 4);
  }
}

// In the order of Layout.
constexpr GemmKernels kKernels = {
    .tile =
        {
            float_tile<Layout::kF32>,
            float_tile<Layout::kF16>,
            float_tile<Layout::kBF16>,
            integer_tile<Layout::kInt2Sub>,
            integer_tile<Layout::kInt3Sub>,
            integer_tile<Layout::kInt4>,
            integer_tile<Layout::kInt4Min>,
            integer_tile<Layout::kInt4Super>,
            integer_tile<Layout::kInt4Table>,
            integer_tile<Layout::kInt4TableSuper>,
            integer_tile<Layout::kInt4Mx>,
            integer_tile<Layout::kInt5>,
            integer_tile<Layout::kInt5Min>,
            integer_tile<Layout::kInt5Super>,
            integer_tile<Layout::kInt6Sub>,
            integer_tile<Layout::kInt8>,
        },
    .finish = finish,
    .quantise_row = quantise_row,
    .round_row = round_row,
    .round_row_bf16 = round_row,
};

}  // namespace

const GemmKernels& gemm_kernels_scalar() { return kKernels; }

}  // namespace quire::kernels
