#include "weights/gguf_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "weights/byte_reader.h"

namespace quire::weights {
namespace {

constexpr uint64_t kMaxKeyLength = 65535;  // by the specification
constexpr uint64_t kMaxNameLength = 64;    // by the specification
constexpr uint32_t kMaxDimensions = 4;     // GGML_MAX_DIMS
constexpr uint32_t kDefaultAlignment = 32;

std::unexpected<Error> corrupt(std::string message, std::string_view param = {}) {
  return fail(ErrorKind::kCorruptFile, std::move(message), std::string(param));
}

std::unexpected<Error> ends_early(std::string_view what) {
  return corrupt(fmt::format("the file ends inside {}; is the download complete?", what));
}

// Bytes of one value, or nothing for types without a fixed size and for numbers that are no type.
std::optional<uint64_t> size_of(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return std::nullopt;
}

// The name of a GGML tensor type, empty if the number is unknown or no longer in use.
std::string_view ggml_type_name(uint32_t number) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
       "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
       "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
       "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",   "Q1_0"});
  return number < kNames.size() ? kNames[number] : "";
}

std::optional<WeightFormat> format_named(std::string_view name) {
  for (int i = 0; i < kWeightFormats; ++i)
    if (name == format_info(static_cast<WeightFormat>(i)).name) return static_cast<WeightFormat>(i);
  return std::nullopt;
}

struct Header {
  uint64_t tensors;
  uint64_t entries;
};

Result<Header> read_header(ByteReader& in) {
  const auto magic = in.take(4);
  if (!magic || std::string_view(reinterpret_cast<const char*>(magic->data()), 4) != "GGUF")
    return corrupt("not a GGUF file: it does not begin with \"GGUF\"");
  const auto version = in.read<uint32_t>();
  if (!version) return ends_early("the header");
  if (*version != 2 && *version != 3) {
    const bool swapped = (*version & 0xffffU) == 0;
    return fail(ErrorKind::kUnsupported, swapped ? std::string("a big-endian GGUF file; only little-endian is read")
                                                 : fmt::format("GGUF version {}; 2 and 3 are read", *version));
  }
  const auto tensors = in.read<uint64_t>(), entries = in.read<uint64_t>();
  if (!tensors || !entries) return ends_early("the header");
  return Header{*tensors, *entries};
}

// A key or a tensor's name: not empty, not too long, UTF-8.
Result<std::string_view> read_name(ByteReader& in, std::string_view what, uint64_t index, uint64_t max_length) {
  const std::string where = fmt::format("the name of {} {}", what, index);
  const auto name = in.read_string();
  if (!name) return ends_early(where);
  if (name->empty() || name->size() > max_length)
    return corrupt(fmt::format("{} has {} bytes; 1 to {} are allowed", where, name->size(), max_length));
  if (!is_utf8(*name)) return corrupt(fmt::format("{} is not UTF-8: {}", where, in_quotes(*name)));
  return *name;
}

Result<GgufValue> read_array(ByteReader& in, std::string_view key) {
  const auto type = in.read<GgufType>();
  const auto count = in.read<uint64_t>();
  if (!type || !count) return ends_early("key " + in_quotes(key));
  if (*type == GgufType::kArray)
    return fail(ErrorKind::kUnsupported, fmt::format("key {} holds arrays of arrays", in_quotes(key)),
                std::string(key));
  GgufValue value{*type, true, *count};
  if (*type == GgufType::kString) {
    ByteReader rest = in;
    for (uint64_t i = 0; i < *count; ++i)
      if (!rest.read_string()) return ends_early("key " + in_quotes(key));
    value.bytes = *in.take(rest.position() - in.position());
    return value;
  }
  const auto size = size_of(*type);
  if (!size)
    return corrupt(fmt::format("key {} has the unknown element type {}", in_quotes(key), std::to_underlying(*type)),
                   key);
  if (*count > in.remaining() / *size) return ends_early("key " + in_quotes(key));
  value.bytes = *in.take(*count * *size);
  return value;
}

Result<GgufValue> read_value(ByteReader& in, std::string_view key) {
  const auto type = in.read<GgufType>();
  if (!type) return ends_early("key " + in_quotes(key));
  if (*type == GgufType::kArray) return read_array(in, key);
  GgufValue value{*type};
  if (*type == GgufType::kString) {
    const auto text = in.read_string();
    if (!text) return ends_early("key " + in_quotes(key));
    value.bytes = std::as_bytes(std::span(*text));
    return value;
  }
  const auto size = size_of(*type);
  if (!size)
    return corrupt(fmt::format("key {} has the unknown type {}", in_quotes(key), std::to_underlying(*type)), key);
  const auto bytes = in.take(*size);
  if (!bytes) return ends_early("key " + in_quotes(key));
  value.bytes = *bytes;
  return value;
}

Result<std::vector<GgufEntry>> read_entries(ByteReader& in, uint64_t count) {
  std::vector<GgufEntry> entries;
  std::set<std::string_view> keys;
  for (uint64_t i = 0; i < count; ++i) {
    const auto key = read_name(in, "key", i, kMaxKeyLength);
    if (!key) return std::unexpected(key.error());
    if (!keys.insert(*key).second) return corrupt(fmt::format("key {} occurs twice", in_quotes(*key)), *key);
    auto value = read_value(in, *key);
    if (!value) return std::unexpected(std::move(value.error()));
    const auto is_bit = [](std::byte b) { return b <= std::byte{1}; };
    if (value->type == GgufType::kBool && !std::ranges::all_of(value->bytes, is_bit))
      return corrupt(fmt::format("key {} has a boolean that is neither 0 nor 1", in_quotes(*key)), *key);
    entries.push_back({*key, *value});
  }
  return entries;
}

Result<uint64_t> alignment_of(const std::vector<GgufEntry>& entries) {
  const std::string_view key = "general.alignment";
  const auto entry = std::ranges::find(entries, key, &GgufEntry::key);
  if (entry == entries.end()) return kDefaultAlignment;
  const auto alignment = to_integer(*entry);
  if (!alignment) return std::unexpected(alignment.error());
  if (*alignment < 1 || *alignment > UINT32_MAX || !std::has_single_bit(static_cast<uint64_t>(*alignment)))
    return corrupt(fmt::format("{} is {}; it must be a power of two", key, *alignment), key);
  return static_cast<uint64_t>(*alignment);
}

struct TensorInfo {
  std::string_view name;
  std::vector<int64_t> shape;  // outermost first
  std::string_view type;
  std::optional<WeightFormat> format;  // unless the type is not read
  uint64_t offset;
  uint64_t size;  // in bytes; 0 if the type is not read
};

// The bytes that the tensor takes by its shape and format.
Result<uint64_t> byte_size(const TensorInfo& tensor) {
  const auto elements = element_count(tensor.shape);
  if (!elements)
    return corrupt(
        fmt::format("tensor {} has a zero extent, or more elements than fit 63 bits", in_quotes(tensor.name)),
        tensor.name);
  if (!tensor.format) return 0;
  const FormatInfo& info = format_info(*tensor.format);
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % info.block_elements != 0)
    return corrupt(fmt::format("tensor {} has rows of {} elements; {} needs a multiple of {}", in_quotes(tensor.name),
                               row, info.name, info.block_elements),
                   tensor.name);
  uint64_t size = 0;
  if (__builtin_mul_overflow(*elements / info.block_elements, info.block_bytes, &size))
    return corrupt(fmt::format("tensor {} has more bytes than fit 64 bits", in_quotes(tensor.name)), tensor.name);
  return size;
}

Result<TensorInfo> read_tensor_info(ByteReader& in, uint64_t index) {
  const auto name = read_name(in, "tensor", index, kMaxNameLength);
  if (!name) return std::unexpected(name.error());
  const std::string where = "tensor " + in_quotes(*name);
  const auto dimensions = in.read<uint32_t>();
  if (!dimensions) return ends_early(where);
  if (*dimensions > kMaxDimensions)
    return corrupt(fmt::format("{} has {} dimensions; at most {} are allowed", where, *dimensions, kMaxDimensions),
                   *name);
  TensorInfo info{*name, {}, {}, {}, 0, 0};
  for (uint32_t i = 0; i < *dimensions; ++i) {
    const auto extent = in.read<uint64_t>();
    if (!extent) return ends_early(where);
    if (!std::in_range<int64_t>(*extent)) return corrupt(fmt::format("{} has the extent {}", where, *extent), *name);
    info.shape.insert(info.shape.begin(), static_cast<int64_t>(*extent));
  }
  const auto type = in.read<uint32_t>();
  const auto offset = in.read<uint64_t>();
  if (!type || !offset) return ends_early(where);
  info.type = ggml_type_name(*type);
  info.format = format_named(info.type);
  info.offset = *offset;
  if (info.type.empty()) return corrupt(fmt::format("{} has the unknown type {}", where, *type), *name);
  const auto size = byte_size(info);
  if (!size) return std::unexpected(size.error());
  info.size = *size;
  return info;
}

// Every tensor must lie in the data, aligned, and on bytes of its own.
Result<void> check_placement(std::vector<TensorInfo> tensors, uint64_t alignment, uint64_t data_size) {
  for (const TensorInfo& t : tensors) {
    if (t.offset % alignment != 0)
      return corrupt(fmt::format("tensor {} is at offset {}, not a multiple of the alignment {}", in_quotes(t.name),
                                 t.offset, alignment),
                     t.name);
    if (t.offset > data_size || t.size > data_size - t.offset)
      return corrupt(
          fmt::format("tensor {} needs {} bytes at offset {} of the tensor data, which has only {} bytes; is "
                      "the download complete?",
                      in_quotes(t.name), t.size, t.offset, data_size),
          t.name);
  }
  std::ranges::sort(tensors, {}, [](const TensorInfo& t) { return std::pair(t.offset, t.size); });
  for (size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].offset - tensors[i - 1].offset < tensors[i - 1].size)
      return corrupt(
          fmt::format("tensor {} overlaps tensor {}", in_quotes(tensors[i].name), in_quotes(tensors[i - 1].name)),
          tensors[i].name);
  return {};
}

TensorEntry to_entry(const TensorInfo& info, std::span<const std::byte> data) {
  Tensor tensor{std::string(info.name), WeightFormat::kF32, info.shape, {}};
  if (!info.format) return {std::move(tensor), std::string(info.type)};
  tensor.format = *info.format;
  tensor.data = data.subspan(info.offset, info.size);
  return {std::move(tensor)};
}

}  // namespace

Result<GgufPart> parse_gguf(std::span<const std::byte> file) {
  ByteReader in(file);
  const auto header = read_header(in);
  if (!header) return std::unexpected(header.error());
  GgufPart part;
  auto entries = read_entries(in, header->entries);
  if (!entries) return std::unexpected(std::move(entries.error()));
  part.entries = std::move(*entries);
  const auto alignment = alignment_of(part.entries);
  if (!alignment) return std::unexpected(alignment.error());

  std::vector<TensorInfo> infos;
  for (uint64_t i = 0; i < header->tensors; ++i) {
    auto info = read_tensor_info(in, i);
    if (!info) return std::unexpected(std::move(info.error()));
    infos.push_back(std::move(*info));
  }
  const uint64_t data_begin = (in.position() + *alignment - 1) & ~(*alignment - 1);
  const auto data = data_begin <= file.size() ? file.subspan(data_begin) : std::span<const std::byte>{};
  if (auto placed = check_placement(infos, *alignment, data.size()); !placed)
    return std::unexpected(std::move(placed.error()));
  for (const TensorInfo& info : infos) part.tensors.push_back(to_entry(info, data));
  return part;
}

}  // namespace quire::weights
