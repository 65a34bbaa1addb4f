#include "kernels/pack_blocks.h"

#include <cstring>

#include "base/check.h"

namespace quire::kernels {
namespace {

using weights::WeightFormat;

uint16_t read16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// 32 nibbles: the low ones of 16 bytes, then the high ones.
void split_nibbles(const uint8_t* packed, uint8_t* out) {
  for (int i = 0; i < 16; i++) {
    out[i] = packed[i] & 15;
    out[i + 16] = static_cast<uint8_t>(packed[i] >> 4);
  }
}

// The fifth bits of 32 weights, as Q5_0 and Q5_1 keep them: bit i belongs to weight i.
void add_high_bits(const uint8_t* bits, uint8_t* out) {
  uint32_t high;
  std::memcpy(&high, bits, sizeof high);
  for (int i = 0; i < kGroup; i++) out[i] = static_cast<uint8_t>(out[i] | ((high >> i) & 1U) << 4);
}

// The 6-bit factors of group j in the 12 bytes of a Q4_K or Q5_K block.
void read_factors(const uint8_t* s, int j, uint8_t* factor) {
  if (j < 4) {
    factor[0] = s[j] & 63;
    factor[1] = s[j + 4] & 63;
  } else {
    factor[0] = static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    factor[1] = static_cast<uint8_t>(s[j + 4] >> 4 | (s[j] >> 6) << 4);
  }
}

// 32 nibbles of a K-quant: two groups share 32 bytes, the even one has the low nibbles.
void read_super_nibbles(const uint8_t* packed, int j, uint8_t* out) {
  const int shift = 4 * (j & 1);
  for (int i = 0; i < kGroup; i++) out[i] = static_cast<uint8_t>((packed[j / 2 * 32 + i] >> shift) & 15);
}

// Groups 0 to 3 share 32 bytes of four pairs of bits, and 4 to 7 the next.
void read_pairs(const uint8_t* packed, int j, uint8_t* out) {
  for (int i = 0; i < kGroup; i++) out[i] = (packed[j / 4 * 32 + i] >> (2 * (j % 4))) & 3;
}

void decode_q2_k(const uint8_t* b, int j, DecodedGroup& out) {
  out.d = read16(b + 80);
  out.m = read16(b + 82);
  std::memcpy(out.factor, b + 2 * j, 2);
  read_pairs(b + 16, j, out.weights);
}

// Factor i of 16: its low four bits in one of 8 bytes, the upper two in one of 4.
uint8_t q3_k_factor(const uint8_t* s, int i) {
  const int low = (s[i % 8] >> (i / 8 * 4)) & 15;
  const int high = (s[8 + i % 4] >> (i / 4 * 2)) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

void decode_q3_k(const uint8_t* b, int j, DecodedGroup& out) {
  out.d = read16(b + 108);
  for (int half = 0; half < 2; half++) out.factor[half] = q3_k_factor(b + 96, 2 * j + half);
  read_pairs(b + 32, j, out.weights);
  for (int i = 0; i < kGroup; i++) out.weights[i] = static_cast<uint8_t>(out.weights[i] | ((b[i] >> j) & 1) << 2);
}

void decode_q4_k(const uint8_t* b, int j, DecodedGroup& out) {
  out.d = read16(b);
  out.m = read16(b + 2);
  read_factors(b + 4, j, out.factor);
  read_super_nibbles(b + 16, j, out.weights);
}

void decode_q5_k(const uint8_t* b, int j, DecodedGroup& out) {
  out.d = read16(b);
  out.m = read16(b + 2);
  read_factors(b + 4, j, out.factor);
  read_super_nibbles(b + 48, j, out.weights);
  for (int i = 0; i < kGroup; i++) {
    out.weights[i] = static_cast<uint8_t>(out.weights[i] | ((b[16 + i] >> j) & 1) << 4);
  }
}

// 128 weights at a time: groups 0 and 1 have the low nibbles of 64 bytes, 2 and 3 the high ones; the upper two bits of
// all four share 32 bytes.
void decode_q6_k(const uint8_t* b, int j, DecodedGroup& out) {
  const int half = j / 4;
  const int part = j % 4;
  const uint8_t* low = b + half * 64 + part % 2 * 32;
  const uint8_t* high = b + 128 + half * 32;
  for (int i = 0; i < kGroup; i++) {
    const int nibble = (low[i] >> (part / 2 * 4)) & 15;
    out.weights[i] = static_cast<uint8_t>(nibble | ((high[i] >> (2 * part)) & 3) << 4);
  }
  std::memcpy(out.factor, b + 192 + half * 8 + part * 2, 2);
  out.d = read16(b + 208);
}

void decode_iq4_xs(const uint8_t* b, int j, DecodedGroup& out) {
  out.d = read16(b);
  const int low = (b[4 + j / 2] >> (j % 2 * 4)) & 15;
  const int high = (read16(b + 2) >> (2 * j)) & 3;
  out.factor[0] = static_cast<uint8_t>((low | high << 4) - 32);
  split_nibbles(b + 8 + 16 * j, out.weights);
}

}  // namespace

DecodedGroup decode_group(WeightFormat format, const std::byte* row, int g) {
  QUIRE_CHECK(weights::is_quantised(format));
  const weights::FormatInfo& info = weights::format_info(format);
  const int groups = info.block_elements / kGroup;
  const auto* b =
      reinterpret_cast<const uint8_t*>(row) + static_cast<size_t>(g / groups) * static_cast<size_t>(info.block_bytes);
  const int j = g % groups;
  DecodedGroup out;
  switch (format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kIQ4_NL:
      out.d = read16(b);
      split_nibbles(b + 2, out.weights);
      return out;
    case WeightFormat::kQ4_1:
      out.d = read16(b);
      out.m = read16(b + 2);
      split_nibbles(b + 4, out.weights);
      return out;
    case WeightFormat::kQ5_0:
      out.d = read16(b);
      split_nibbles(b + 6, out.weights);
      add_high_bits(b + 2, out.weights);
      return out;
    case WeightFormat::kQ5_1:
      out.d = read16(b);
      out.m = read16(b + 2);
      split_nibbles(b + 8, out.weights);
      add_high_bits(b + 4, out.weights);
      return out;
    case WeightFormat::kQ8_0:
      out.d = read16(b);
      for (int i = 0; i < kGroup; i++) out.weights[i] = b[2 + i] ^ 0x80;
      return out;
    case WeightFormat::kMXFP4:
      out.d = weights::e8m0_half_bits(b[0]);
      split_nibbles(b + 1, out.weights);
      return out;
    case WeightFormat::kIQ4_XS:
      decode_iq4_xs(b, j, out);
      return out;
    case WeightFormat::kQ2_K:
      decode_q2_k(b, j, out);
      return out;
    case WeightFormat::kQ3_K:
      decode_q3_k(b, j, out);
      return out;
    case WeightFormat::kQ4_K:
      decode_q4_k(b, j, out);
      return out;
    case WeightFormat::kQ5_K:
      decode_q5_k(b, j, out);
      return out;
    case WeightFormat::kQ6_K:
      decode_q6_k(b, j, out);
      return out;
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kAffine4:  // never packed as integers
    case WeightFormat::kAffine8:
      break;
  }
  return out;
}

}  // namespace quire::kernels
