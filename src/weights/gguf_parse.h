// One GGUF file, parsed from its bytes: metadata values and tensors, all of them views of those bytes.
//
// Layout (all little-endian): "GGUF", version, tensor count, entry count; entries of key, type, value; tensor infos of
// name, extents (innermost first), type, offset; padding to the alignment; tensor data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "weights/tensor_index.h"

namespace quire::weights {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

// A checked metadata value: `bytes` holds exactly `count` values of `type` as they lie in the file, except that a
// single string is without its length.
struct GgufValue {
  GgufType type = GgufType::kU8;
  bool is_array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes = {};
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

struct GgufPart {
  std::vector<GgufEntry> entries;
  std::vector<TensorEntry> tensors;
};

// kUnsupported for another version, byte order or nested arrays, else kCorruptFile; the message names the key or
// tensor.
Result<GgufPart> parse_gguf(std::span<const std::byte> file);

// The value as the asked type. kCorruptFile, naming the key, if it has another or is out of range.
Result<std::string_view> to_string(const GgufEntry& entry);
Result<int64_t> to_integer(const GgufEntry& entry);
Result<double> to_number(const GgufEntry& entry);
Result<bool> to_boolean(const GgufEntry& entry);
Result<std::vector<std::string_view>> to_strings(const GgufEntry& entry);
Result<std::vector<float>> to_floats(const GgufEntry& entry);
Result<std::vector<int64_t>> to_integers(const GgufEntry& entry);

}  // namespace quire::weights
