#include "weights/format.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace quire::weights {
namespace {

constexpr std::array<FormatInfo, kWeightFormats> kFormats = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"IQ4_NL", 32, 18},
    {"IQ4_XS", 256, 136},
    {"MXFP4", 32, 17},
    {"AFFINE4", 32, 21},
    {"AFFINE8", 32, 37},
}};

// Block layouts below, but for the affine ones, are those of ggml-common.h; the arithmetic is that of dequantize_row_*
// in ggml-quants.c.

uint8_t byte_at(const std::byte* p, int i) { return std::to_integer<uint8_t>(p[i]); }
uint16_t u16_at(const std::byte* p, int i) { return static_cast<uint16_t>(byte_at(p, i) | byte_at(p, i + 1) << 8); }
float half_at(const std::byte* p, int i) { return half_to_float(u16_at(p, i)); }

void f32_block(const std::byte* b, float* y) { std::memcpy(y, b, sizeof *y); }
void f16_block(const std::byte* b, float* y) { *y = half_at(b, 0); }
void bf16_block(const std::byte* b, float* y) { *y = bf16_to_float(u16_at(b, 0)); }

void q8_0_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(byte_at(b, 2 + i))) * d;
}

// Element i < 16 is the low nibble of byte i, element i + 16 the high one.
int nibble(const std::byte* qs, int i) { return i < 16 ? byte_at(qs, i) & 15 : byte_at(qs, i - 16) >> 4; }

// Bit i of 32 at `qh`, as the fifth bit of a value.
int fifth_bit(const std::byte* qh, int i) { return (byte_at(qh, i / 8) >> (i % 8) & 1) << 4; }

void q4_0_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(nibble(b + 2, i) - 8) * d;
}

void q4_1_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0), m = half_at(b, 2);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(nibble(b + 4, i)) * d + m;
}

void q5_0_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>((nibble(b + 6, i) | fifth_bit(b + 2, i)) - 16) * d;
}

void q5_1_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0), m = half_at(b, 2);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(nibble(b + 8, i) | fifth_bit(b + 4, i)) * d + m;
}

// Each half of 128 weights shares 32 bytes: four pairs of bits, for as many runs of 32.
int bit_pair(const std::byte* qs, int i) { return byte_at(qs, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3; }

void q2_k_block(const std::byte* b, float* y) {
  const float d = half_at(b, 80), dmin = half_at(b, 82);
  for (int i = 0; i < 256; ++i) {
    const int fields = byte_at(b, i / 16);
    const float scale = d * static_cast<float>(fields & 15), min = dmin * static_cast<float>(fields >> 4);
    y[i] = scale * static_cast<float>(bit_pair(b + 16, i)) - min;
  }
}

// Sub-block j of 16: four bits in one of 8 bytes, two more in one of 4.
int q3_k_factor(const std::byte* s, int j) {
  const int low = byte_at(s, j % 8) >> (j / 8 * 4) & 15;
  const int high = byte_at(s, 8 + j % 4) >> (j / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void q3_k_block(const std::byte* b, float* y) {
  const float d = half_at(b, 108);
  for (int i = 0; i < 256; ++i) {
    const int high = byte_at(b, i % 32) >> (i / 32) & 1;
    const int value = (bit_pair(b + 32, i) | high << 2) - 4;
    y[i] = d * static_cast<float>(q3_k_factor(b + 96, i / 16)) * static_cast<float>(value);
  }
}

struct ScaleAndMin {
  float scale;
  float min;
};

// Sub-block j of 8 of a Q4_K or Q5_K block: 6-bit scale and minimum from the 12 bytes at b + 4, times d and dmin.
ScaleAndMin k_scale(const std::byte* b, int j) {
  const auto field = [&](int i) { return byte_at(b, 4 + i); };
  const int scale = j < 4 ? field(j) & 63 : (field(j + 4) & 15) | (field(j - 4) >> 6) << 4;
  const int min = j < 4 ? field(j + 4) & 63 : field(j + 4) >> 4 | (field(j) >> 6) << 4;
  return {half_at(b, 0) * static_cast<float>(scale), half_at(b, 2) * static_cast<float>(min)};
}

// Sub-blocks 2n and 2n+1 share 32 bytes: low nibbles, then high ones.
int k_nibble(const std::byte* qs, int j, int i) { return byte_at(qs, j / 2 * 32 + i) >> (j % 2 * 4) & 15; }

void q4_k_block(const std::byte* b, float* y) {
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = k_scale(b, j);
    for (int i = 0; i < 32; ++i) y[j * 32 + i] = scale * static_cast<float>(k_nibble(b + 16, j, i)) - min;
  }
}

void q5_k_block(const std::byte* b, float* y) {
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = k_scale(b, j);
    for (int i = 0; i < 32; ++i) {
      const int high = (byte_at(b, 16 + i) >> j & 1) << 4;
      y[j * 32 + i] = scale * static_cast<float>(k_nibble(b + 48, j, i) | high) - min;
    }
  }
}

void q6_k_block(const std::byte* b, float* y) {
  const float d = half_at(b, 208);
  for (int i = 0; i < 256; ++i) {  // each half of 128 has 64 bytes of low nibbles and 32 of high bit pairs
    const int half = i / 128, quarter = i % 128 / 32, lane = i % 32;
    const int low = byte_at(b, half * 64 + quarter % 2 * 32 + lane) >> (quarter / 2 * 4) & 15;
    const int high = byte_at(b, 128 + half * 32 + lane) >> (quarter * 2) & 3;
    const auto scale = static_cast<int8_t>(byte_at(b, 192 + i / 16));
    y[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

void iq4_nl_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(kIq4Values[nibble(b + 2, i)]);
}

void iq4_xs_block(const std::byte* b, float* y) {
  const float d = half_at(b, 0);
  for (int j = 0; j < 8; ++j) {
    const int low = byte_at(b, 4 + j / 2) >> (j % 2 * 4) & 15, high = u16_at(b, 2) >> (2 * j) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i) y[j * 32 + i] = scale * static_cast<float>(kIq4Values[nibble(b + 8 + 16 * j, i)]);
  }
}

void mxfp4_block(const std::byte* b, float* y) {
  const float d = bf16_to_float(e8m0_half_bits(byte_at(b, 0)));
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(kE2m1Values[nibble(b + 1, i)]);
}

float float_at(const std::byte* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void affine4_block(const std::byte* b, float* y) {
  const float d = float_at(b);
  const int zero = byte_at(b, 4);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(nibble(b + 5, i) - zero);
}

void affine8_block(const std::byte* b, float* y) {
  const float d = float_at(b);
  const int zero = byte_at(b, 4);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(byte_at(b, 5 + i) - zero);
}

// The block function is a template argument so that it can be inlined.
template <void (*kBlock)(const std::byte*, float*)>
void each_block(const FormatInfo& info, std::span<const std::byte> blocks, std::span<float> out) {
  const auto elements = static_cast<size_t>(info.block_elements), bytes = static_cast<size_t>(info.block_bytes);
  for (size_t i = 0; i < out.size() / elements; ++i) kBlock(blocks.data() + i * bytes, out.data() + i * elements);
}

}  // namespace

uint16_t e8m0_half_bits(uint8_t e) { return static_cast<uint16_t>(e < 2 ? 0 : (e - 1) << 7); }

const FormatInfo& format_info(WeightFormat format) { return kFormats[static_cast<size_t>(format)]; }

bool is_quantised(WeightFormat format) { return format_info(format).block_elements > 1; }

void dequantise(WeightFormat format, std::span<const std::byte> blocks, std::span<float> out) {
  const FormatInfo& info = format_info(format);
  const auto elements = static_cast<size_t>(info.block_elements), bytes = static_cast<size_t>(info.block_bytes);
  QUIRE_CHECK(out.size() % elements == 0 && blocks.size() % bytes == 0);
  QUIRE_CHECK(out.size() / elements == blocks.size() / bytes);
  switch (format) {
    case WeightFormat::kF32:
      return each_block<f32_block>(info, blocks, out);
    case WeightFormat::kF16:
      return each_block<f16_block>(info, blocks, out);
    case WeightFormat::kBF16:
      return each_block<bf16_block>(info, blocks, out);
    case WeightFormat::kQ8_0:
      return each_block<q8_0_block>(info, blocks, out);
    case WeightFormat::kQ4_0:
      return each_block<q4_0_block>(info, blocks, out);
    case WeightFormat::kQ4_1:
      return each_block<q4_1_block>(info, blocks, out);
    case WeightFormat::kQ5_0:
      return each_block<q5_0_block>(info, blocks, out);
    case WeightFormat::kQ5_1:
      return each_block<q5_1_block>(info, blocks, out);
    case WeightFormat::kQ2_K:
      return each_block<q2_k_block>(info, blocks, out);
    case WeightFormat::kQ3_K:
      return each_block<q3_k_block>(info, blocks, out);
    case WeightFormat::kQ4_K:
      return each_block<q4_k_block>(info, blocks, out);
    case WeightFormat::kQ5_K:
      return each_block<q5_k_block>(info, blocks, out);
    case WeightFormat::kQ6_K:
      return each_block<q6_k_block>(info, blocks, out);
    case WeightFormat::kIQ4_NL:
      return each_block<iq4_nl_block>(info, blocks, out);
    case WeightFormat::kIQ4_XS:
      return each_block<iq4_xs_block>(info, blocks, out);
    case WeightFormat::kMXFP4:
      return each_block<mxfp4_block>(info, blocks, out);
    case WeightFormat::kAffine4:
      return each_block<affine4_block>(info, blocks, out);
    case WeightFormat::kAffine8:
      return each_block<affine8_block>(info, blocks, out);
  }
}

}  // namespace quire::weights
