// Metadata values as C++ values. The bytes were checked when the file was parsed.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "weights/byte_reader.h"
#include "weights/gguf_parse.h"

namespace quire::weights {
namespace {

const char* name_of(GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return "UINT8";
    case GgufType::kI8:
      return "INT8";
    case GgufType::kU16:
      return "UINT16";
    case GgufType::kI16:
      return "INT16";
    case GgufType::kU32:
      return "UINT32";
    case GgufType::kI32:
      return "INT32";
    case GgufType::kF32:
      return "FLOAT32";
    case GgufType::kBool:
      return "BOOL";
    case GgufType::kString:
      return "STRING";
    case GgufType::kArray:
      return "ARRAY";
    case GgufType::kU64:
      return "UINT64";
    case GgufType::kI64:
      return "INT64";
    case GgufType::kF64:
      return "FLOAT64";
  }
  return "?";
}

std::unexpected<Error> mismatch(const GgufEntry& entry, const char* wanted) {
  return fail(ErrorKind::kCorruptFile,
              fmt::format("key {} is {}{}, but must be {}", in_quotes(entry.key),
                          entry.value.is_array ? "an array of " : "", name_of(entry.value.type), wanted),
              std::string(entry.key));
}

// The next integer or boolean of that type, or nothing if it is no integer or above int64_t.
std::optional<int64_t> next_integer(ByteReader& in, GgufType type) {
  switch (type) {
    case GgufType::kBool:
    case GgufType::kU8:
      return in.read<uint8_t>();
    case GgufType::kI8:
      return in.read<int8_t>();
    case GgufType::kU16:
      return in.read<uint16_t>();
    case GgufType::kI16:
      return in.read<int16_t>();
    case GgufType::kU32:
      return in.read<uint32_t>();
    case GgufType::kI32:
      return in.read<int32_t>();
    case GgufType::kI64:
      return in.read<int64_t>();
    case GgufType::kU64: {
      const auto value = in.read<uint64_t>();
      return value && std::in_range<int64_t>(*value) ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

Result<std::string_view> to_string(const GgufEntry& entry) {
  const GgufValue& value = entry.value;
  if (value.is_array || value.type != GgufType::kString) return mismatch(entry, "a STRING");
  return std::string_view(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

Result<int64_t> to_integer(const GgufEntry& entry) {
  const GgufValue& value = entry.value;
  ByteReader in(value.bytes);
  const auto integer = value.is_array || value.type == GgufType::kBool ? std::nullopt : next_integer(in, value.type);
  if (!integer) return mismatch(entry, "an integer of at most 63 bits");
  return *integer;
}

Result<double> to_number(const GgufEntry& entry) {
  const GgufValue& value = entry.value;
  ByteReader in(value.bytes);
  if (!value.is_array && value.type == GgufType::kF32) return static_cast<double>(*in.read<float>());
  if (!value.is_array && value.type == GgufType::kF64) return *in.read<double>();
  const auto integer = to_integer(entry);
  if (!integer) return mismatch(entry, "a number");
  return static_cast<double>(*integer);
}

Result<bool> to_boolean(const GgufEntry& entry) {
  if (entry.value.is_array || entry.value.type != GgufType::kBool) return mismatch(entry, "a BOOL");
  return entry.value.bytes[0] != std::byte{0};
}

Result<std::vector<std::string_view>> to_strings(const GgufEntry& entry) {
  if (!entry.value.is_array || entry.value.type != GgufType::kString) return mismatch(entry, "an array of STRING");
  std::vector<std::string_view> out;
  out.reserve(entry.value.count);
  ByteReader in(entry.value.bytes);
  for (uint64_t i = 0; i < entry.value.count; ++i) out.push_back(*in.read_string());
  return out;
}

Result<std::vector<float>> to_floats(const GgufEntry& entry) {
  if (!entry.value.is_array || entry.value.type != GgufType::kF32) return mismatch(entry, "an array of FLOAT32");
  std::vector<float> out(entry.value.count);
  ByteReader in(entry.value.bytes);
  for (float& x : out) x = *in.read<float>();
  return out;
}

Result<std::vector<int64_t>> to_integers(const GgufEntry& entry) {
  if (!entry.value.is_array) return mismatch(entry, "an array of integers");
  std::vector<int64_t> out;
  ByteReader in(entry.value.bytes);
  for (uint64_t i = 0; i < entry.value.count; ++i) {
    const auto integer = next_integer(in, entry.value.type);
    if (!integer) return mismatch(entry, "an array of integers of at most 63 bits");
    out.push_back(*integer);
  }
  return out;
}

}  // namespace quire::weights
