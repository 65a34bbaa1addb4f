// Element types, and exact conversions between the 16-bit floats and fp32.
//
// The conversions use integer bits, so that they hold for denormals also with flush-to-zero set (docs/determinism.md).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace quire {

enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kU8, kI32 };

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "i8";
    case DType::kU8:
      return "u8";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

constexpr float bf16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

// Rounds to nearest even. A NaN stays a (quiet) NaN.
constexpr uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t{h} & 0x8000U) << 16;
  const uint32_t exponent = (h >> 10) & 31U;
  const uint32_t mantissa = h & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const auto shift = static_cast<uint32_t>(std::countl_zero(mantissa)) - 21;  // brings the leading one to bit 10
  return std::bit_cast<float>(sign | (113 - shift) << 23 | ((mantissa << shift) & 1023U) << 13);
}

// Rounds to nearest even; beyond the largest half it is infinite. A NaN stays a (quiet) NaN.
constexpr uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65520 and above
  if (magnitude >= 0x38800000U)                                                // 2^-14 and above: a normal half
    return static_cast<uint16_t>(sign | (magnitude - (112U << 23) + 0xfffU + (magnitude >> 13 & 1U)) >> 13);
  if (magnitude < 0x33000000U) return sign;  // less than half of the smallest
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1U << shift) - 1), half = 1U << (shift - 1);
  return static_cast<uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1U) != 0) ? 1 : 0)));
}

}  // namespace quire
