#include "weights/quantised_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "weights/unaligned.h"

namespace quire::weights {
namespace {

using Layout = QuantisationScheme::Layout;

constexpr int kBlock = 32;

float float_of(const StoredTensor& tensor, size_t index) {
  if (tensor.format == "F32") return load<float>(tensor.data, index);
  const auto bits = load<uint16_t>(tensor.data, index);
  return tensor.format == "BF16" ? bf16_to_float(bits) : half_to_float(bits);
}

// The fp16 number of that value, if there is one; finite numbers alone.
std::optional<uint16_t> exact_half(float value) {
  const uint16_t half = float_to_half(value);
  const bool exact =
      std::isfinite(value) && std::bit_cast<uint32_t>(half_to_float(half)) == std::bit_cast<uint32_t>(value);
  return exact ? std::optional(half) : std::nullopt;
}

bool all_exact_halves(const StoredTensor& scales) {
  const size_t count = scales.data.size() / (scales.format == "F32" ? 4 : 2);
  for (size_t i = 0; i < count; ++i)
    if (!exact_half(float_of(scales, i))) return false;
  return true;
}

WeightFormat format_of(const MatrixParts& parts) {
  const QuantisationScheme& scheme = parts.scheme;
  if (scheme.layout == Layout::kMxfp4) return WeightFormat::kMXFP4;
  if (scheme.layout == Layout::kFp8 || parts.input_groups) return WeightFormat::kBF16;
  const bool four = scheme.bits == 4;
  const bool halves = all_exact_halves(parts.scales);
  if (halves && !parts.zeros) return four ? WeightFormat::kQ4_0 : WeightFormat::kQ8_0;
  if (halves && four) return WeightFormat::kQ5_0;
  return four ? WeightFormat::kAffine4 : WeightFormat::kAffine8;
}

// Four exponent bits of bias 7, three of mantissa, no infinities: 448 is the largest.
constexpr float float_of_e4m3(uint8_t bits) {
  const float sign = bits >= 128 ? -1.F : 1.F;
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000U);
  const int scaled = exponent == 0 ? mantissa : mantissa + 8;  // in units of 2^(max(exponent, 1) - 10)
  const int power = (exponent == 0 ? 1 : exponent) - 10;
  return sign * static_cast<float>(scaled) * std::bit_cast<float>(static_cast<uint32_t>(127 + power) << 23);
}

constexpr auto kE4m3 = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = float_of_e4m3(static_cast<uint8_t>(i));
  return values;
}();

// As GGML's blocks hold them.
void pack_nibbles(std::span<const uint8_t, kBlock> codes, std::byte* out) {
  for (size_t i = 0; i < kBlock / 2; ++i) out[i] = static_cast<std::byte>(codes[i] | codes[i + kBlock / 2] << 4);
}

// Where AWQ has output n of eight: at 4 bits times this.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

QuantisedMatrix::QuantisedMatrix(const MatrixParts& parts) : parts_(parts), format_(format_of(parts)) {}

std::vector<int64_t> QuantisedMatrix::shape() const {
  if (parts_.stack == 0) return {parts_.rows, parts_.cols};
  return {parts_.stack, parts_.rows / parts_.stack, parts_.cols};
}

// The unsigned integers, or the bits of floats, of at most 32 inputs from `first` on, a multiple of 32.
void QuantisedMatrix::read_codes(int64_t n, int64_t first, std::span<uint8_t> out) const {
  const int bits = parts_.scheme.bits;
  const int64_t per_word = 32 / bits;
  const uint32_t mask = (1U << bits) - 1;
  const std::span<const std::byte> list = parts_.integers.data;
  const auto spread_words = [&](int64_t word, int64_t step) {
    for (size_t i = 0; i < out.size(); word += step) {
      auto fields = load<uint32_t>(list, static_cast<size_t>(word));
      for (int64_t j = 0; j < per_word; ++j, ++i, fields >>= bits) out[i] = static_cast<uint8_t>(fields & mask);
    }
  };
  switch (parts_.scheme.layout) {
    case Layout::kAwq: {
      const int shift = 4 * kAwqPlace[static_cast<size_t>(n % 8)];
      auto word = static_cast<size_t>(first * (parts_.rows / 8) + n / 8);
      for (uint8_t& code : out) {
        code = static_cast<uint8_t>(load<uint32_t>(list, word) >> shift & 15U);
        word += static_cast<size_t>(parts_.rows / 8);
      }
      return;
    }
    case Layout::kGptq:
      return spread_words(first / per_word * parts_.rows + n, parts_.rows);
    case Layout::kPacked:
      return spread_words(n * parts_.integers.shape[1] + first / per_word, 1);
    case Layout::kMxfp4: {
      const auto pairs = list.subspan(static_cast<size_t>((n * parts_.cols + first) / 2), out.size() / 2);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<uint8_t>(std::to_integer<unsigned>(pairs[i / 2]) >> (i % 2 * 4) & 15U);
      return;
    }
    case Layout::kInt8:
    case Layout::kFp8:
      break;
  }
  std::memcpy(out.data(), list.data() + n * parts_.cols + first, out.size());
  if (parts_.scheme.layout == Layout::kInt8)
    for (uint8_t& code : out) code ^= 0x80;  // unsigned, as its zero point
}

// Where output n finds its value of a group in a tensor that has one for each block.
size_t QuantisedMatrix::grid_index(int64_t n, int64_t group) const {
  const int64_t rows = parts_.scheme.group_rows;
  return static_cast<size_t>((rows == 0 ? 0 : n / rows) * parts_.groups + group);
}

float QuantisedMatrix::scale(int64_t n, int64_t group) const {
  const Layout layout = parts_.scheme.layout;
  const bool transposed = layout == Layout::kAwq || layout == Layout::kGptq;
  return float_of(parts_.scales, transposed ? static_cast<size_t>(group * parts_.rows + n) : grid_index(n, group));
}

uint8_t QuantisedMatrix::zero(int64_t n, int64_t group) const {
  const QuantisationScheme& scheme = parts_.scheme;
  if (!parts_.zeros) return static_cast<uint8_t>(1 << (scheme.bits - 1));
  const std::span<const std::byte> list = parts_.zeros->data;
  if (scheme.layout == Layout::kInt8) return load<uint8_t>(list, grid_index(n, group)) ^ 0x80;
  const int64_t per_word = 32 / scheme.bits;
  const bool packed = scheme.layout == Layout::kPacked;
  const int64_t word = packed ? n / per_word * parts_.groups + group : (group * parts_.rows + n) / per_word;
  const int64_t place = scheme.layout == Layout::kAwq ? kAwqPlace[static_cast<size_t>(n % 8)] : n % per_word;
  const uint32_t stored = load<uint32_t>(list, static_cast<size_t>(word)) >> (place * scheme.bits);
  return static_cast<uint8_t>((stored + (scheme.zeros_less_one ? 1 : 0)) & ((1U << scheme.bits) - 1));
}

void QuantisedMatrix::make_block(int64_t n, int64_t first, std::byte* block) const {
  std::array<uint8_t, kBlock> codes;
  read_codes(n, first, codes);
  if (format_ == WeightFormat::kMXFP4) {
    block[0] = parts_.scales.data[static_cast<size_t>((n * parts_.cols + first) / kBlock)];
    return pack_nibbles(codes, block + 1);
  }
  const int64_t group = group_of(first);
  const float d = scale(n, group);
  const uint8_t z = zero(n, group);
  if (format_ == WeightFormat::kAffine4 || format_ == WeightFormat::kAffine8) {
    std::memcpy(block, &d, sizeof d);
    block[4] = std::byte{z};
    block += 5;
  } else {
    const uint16_t half = *exact_half(d);
    std::memcpy(block, &half, sizeof half);
    block += 2;
  }
  if (format_ == WeightFormat::kQ5_0) {  // the difference to the zero point plus 16: 1 to 31
    uint32_t fifth = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      codes[i] = static_cast<uint8_t>(codes[i] + 16 - z);
      fifth |= static_cast<uint32_t>(codes[i] >> 4) << i;
      codes[i] &= 15;
    }
    std::memcpy(block, &fifth, sizeof fifth);
    block += sizeof fifth;
  }
  if (parts_.scheme.bits == 4) return pack_nibbles(codes, block);
  const uint8_t flip = format_ == WeightFormat::kQ8_0 ? 0x80 : 0;  // Q8_0 is signed
  for (size_t i = 0; i < kBlock; ++i) block[i] = static_cast<std::byte>(codes[i] ^ flip);
}

void QuantisedMatrix::make_floats(int64_t n, int64_t first, std::span<std::byte> out) const {
  std::array<uint8_t, kBlock> codes;
  const size_t count = out.size() / 2;
  read_codes(n, first, std::span(codes).first(count));
  const bool fp8 = parts_.scheme.layout == Layout::kFp8;
  int64_t group = -1;
  float d = 0;
  int z = 0;
  for (size_t i = 0; i < count; ++i) {
    if (const int64_t own = group_of(first + static_cast<int64_t>(i)); own != group) {
      group = own;
      d = scale(n, group);
      z = fp8 ? 0 : zero(n, group);
    }
    const uint16_t value = float_to_bf16(d * (fp8 ? kE4m3[codes[i]] : static_cast<float>(codes[i] - z)));
    std::memcpy(&out[2 * i], &value, sizeof value);
  }
}

int64_t QuantisedMatrix::group_of(int64_t k) const {
  if (parts_.input_groups) return load<int32_t>(parts_.input_groups->data, static_cast<size_t>(k));
  return k / parts_.scheme.group_inputs.value_or(parts_.cols);
}

void QuantisedMatrix::make_row(int64_t n, std::span<std::byte> blocks) const {
  const auto size = static_cast<size_t>(format_ == WeightFormat::kBF16 ? 2 * kBlock : format_info(format_).block_bytes);
  for (int64_t k = 0; k < parts_.cols; k += kBlock) {
    const auto at = static_cast<size_t>(k / kBlock) * size;
    if (format_ == WeightFormat::kBF16)
      make_floats(n, k, blocks.subspan(at, std::min(size, blocks.size() - at)));
    else
      make_block(n, k, &blocks[at]);
  }
}

void QuantisedMatrix::add_to_digest(Sha256& hash) const {
  const auto add = [&](std::string_view text) { hash.update(std::as_bytes(std::span(text))); };
  add(describe(parts_.scheme) + (parts_.scheme.zeros_less_one ? ", zeros less one\n" : "\n"));
  for (const std::optional<StoredTensor>& part :
       {std::optional(parts_.integers), std::optional(parts_.scales), parts_.zeros, parts_.input_groups}) {
    if (!part) continue;
    add(fmt::format("{} {}\n", part->name, describe(*part)));
    hash.update(part->data);
  }
}

}  // namespace quire::weights
