#include "weights/safetensors_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "weights/byte_reader.h"
#include "weights/json_events.h"

namespace quire::weights {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDimensions = 16;

std::unexpected<Error> corrupt(std::string message, std::string_view param = {}) {
  return fail(ErrorKind::kCorruptFile, std::move(message), std::string(param));
}

struct Dtype {
  std::string_view name;
  int bits;
  std::optional<WeightFormat> format = std::nullopt;
};

constexpr auto kDtypes = std::to_array<Dtype>({
    {"F32", 32, WeightFormat::kF32},
    {"F16", 16, WeightFormat::kF16},
    {"BF16", 16, WeightFormat::kBF16},
    {"BOOL", 8},
    {"U8", 8},
    {"I8", 8},
    {"U16", 16},
    {"I16", 16},
    {"U32", 32},
    {"I32", 32},
    {"U64", 64},
    {"I64", 64},
    {"F64", 64},
    {"C64", 64},
    {"F8_E5M2", 8},
    {"F8_E4M3", 8},
    {"F8_E8M0", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
});

// One entry of the header as it is written.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

class HeaderEvents final : public JsonEvents {
 public:
  std::vector<HeaderEntry> take() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ == Place::kName) return go(Place::kTensor);
    if (place_ == Place::kMetadataKey) return go(Place::kMetadata);
    return refuse("an object has no place here");
  }

  bool end_object() override {
    if (place_ != Place::kTensor) return go(place_ == Place::kTop ? Place::kEnd : Place::kTop);
    const HeaderEntry& entry = entries_.back();
    if (!entry.dtype || !entry.shape || !entry.offsets) return refuse("needs dtype, shape and data_offsets");
    return go(Place::kTop);
  }

  bool key(string_t& key) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ == Place::kTensor) {
      field_ = key;
      return true;
    }
    if (!names_.insert(key).second) return refuse(fmt::format("tensor {} occurs twice", in_quotes(key)));
    if (key == "__metadata__") return go(Place::kMetadataKey);
    entries_.push_back({key, {}, {}, {}});
    return go(Place::kName);
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype" || entries_.back().dtype)
      return refuse("a string has no place here");
    entries_.back().dtype = text;
    return true;
  }

  bool start_array(size_t) override {
    std::optional<std::vector<uint64_t>>* list = place_ == Place::kTensor ? list_of(field_) : nullptr;
    if (list == nullptr || *list) return refuse("an array has no place here");
    list->emplace();
    return go(Place::kList);
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::kList) return refuse("a number has no place here");
    std::vector<uint64_t>& list = **list_of(field_);
    if (list.size() == kMaxDimensions) return refuse("has too many dimensions");
    list.push_back(number);
    return true;
  }

  bool end_array() override { return go(Place::kTensor); }

 private:
  // Where the next event is: before everything, between tensors, after a tensor's name, in its object, in one of its
  // lists, after "__metadata__", in its object, after everything.
  enum class Place { kStart, kTop, kName, kTensor, kList, kMetadataKey, kMetadata, kEnd };

  bool go(Place place) {
    place_ = place;
    return true;
  }

  std::string where() const override {
    const bool in_tensor = place_ == Place::kName || place_ == Place::kTensor || place_ == Place::kList;
    return in_tensor ? fmt::format("tensor {}: ", in_quotes(entries_.back().name)) : std::string();
  }

  std::optional<std::vector<uint64_t>>* list_of(std::string_view field) {
    if (field == "shape") return &entries_.back().shape;
    if (field == "data_offsets") return &entries_.back().offsets;
    return nullptr;
  }

  Place place_ = Place::kStart;
  std::string field_;
  std::vector<HeaderEntry> entries_;
  std::set<std::string> names_;
};

// A header entry with its numbers checked against the data.
struct PlacedTensor {
  TensorEntry entry;
  uint64_t begin;
  uint64_t end;
};

std::unexpected<Error> bad_tensor(const HeaderEntry& entry, std::string_view problem) {
  return corrupt(fmt::format("tensor {} {}", in_quotes(entry.name), problem), entry.name);
}

// The bytes of a tensor, or nothing if that overflows or is not whole.
std::optional<uint64_t> byte_size(std::span<const uint64_t> shape, int bits) {
  uint64_t total = static_cast<uint64_t>(bits);
  for (uint64_t extent : shape)
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  return total % 8 == 0 ? std::optional(total / 8) : std::nullopt;
}

Result<PlacedTensor> place(HeaderEntry entry, std::span<const std::byte> data) {
  const auto dtype = std::ranges::find(kDtypes, *entry.dtype, &Dtype::name);
  if (dtype == kDtypes.end())
    return bad_tensor(entry, fmt::format("has the unknown dtype {}", in_quotes(*entry.dtype)));
  if (entry.offsets->size() != 2) return bad_tensor(entry, "needs two data_offsets");
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data.size())
    return bad_tensor(
        entry, fmt::format("has data from {} to {}, but the file has {} bytes of data; is the download complete?",
                           begin, end, data.size()));
  const auto size = byte_size(*entry.shape, dtype->bits);
  if (size != end - begin)
    return bad_tensor(entry, fmt::format("has {} bytes of data, which does not fit its shape [{}] and dtype {}",
                                         end - begin, fmt::join(*entry.shape, ", "), dtype->name));
  PlacedTensor placed{{}, begin, end};
  Tensor& tensor = placed.entry.tensor;
  for (uint64_t extent : *entry.shape) {
    if (!std::in_range<int64_t>(extent)) return bad_tensor(entry, fmt::format("has the extent {}", extent));
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  tensor.name = std::move(entry.name);
  if (begin == end)
    placed.entry.unreadable = fmt::format("{} (empty)", dtype->name);
  else if (!dtype->format)
    placed.entry.unreadable = dtype->name;
  else
    tensor.format = *dtype->format;
  tensor.data = data.subspan(begin, end - begin);
  return placed;
}

Result<void> check_tiling(const std::vector<PlacedTensor>& sorted, uint64_t data_size) {
  uint64_t at = 0;
  for (const PlacedTensor& tensor : sorted) {
    const std::string& name = tensor.entry.tensor.name;
    if (tensor.begin != at)
      return corrupt(
          fmt::format("tensor {} begins at byte {} of the data, where {} was due", in_quotes(name), tensor.begin, at),
          name);
    at = tensor.end;
  }
  if (at != data_size)
    return corrupt(
        fmt::format("the tensors end at byte {} of the data, but the file has {} bytes of it", at, data_size));
  return {};
}

// The plain name of a safetensors file: no folder, no way out of one.
bool is_shard_name(std::string_view name) {
  const bool plain = name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
  return plain && name.ends_with(".safetensors");
}

class IndexEvents final : public JsonEvents {
 public:
  ShardMap take() { return std::move(shards_); }
  bool has_map() const { return has_map_; }

  bool start_object(size_t) override {
    if (++depth_ == 2 && in_map_) has_map_ = true;
    return depth_ <= 2 || !in_map_ || refuse("an object has no place in weight_map");
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    ++depth_;
    return outside_map();
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ == 1) {
      in_map_ = key == "weight_map";
      return !in_map_ || !has_map_ || refuse("weight_map occurs twice");
    }
    name_ = key;
    return true;
  }

  bool string(string_t& shard) override {
    if (!in_map_) return true;
    if (depth_ != 2) return refuse("weight_map must be an object");
    if (!is_shard_name(shard))
      return refuse(fmt::format("tensor {} is in {}; a plain name that ends in .safetensors is needed",
                                in_quotes(name_), in_quotes(shard)));
    if (!shards_.emplace(name_, shard).second) return refuse(fmt::format("tensor {} occurs twice", in_quotes(name_)));
    return true;
  }

  bool null() override { return outside_map(); }
  bool boolean(bool) override { return outside_map(); }
  bool number_integer(number_integer_t) override { return outside_map(); }
  bool number_unsigned(number_unsigned_t) override { return outside_map(); }
  bool number_float(number_float_t, const string_t&) override { return outside_map(); }

 private:
  // All but weight_map is free form.
  bool outside_map() { return !in_map_ || refuse("weight_map must map names to file names"); }

  int depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
  std::string name_;
  ShardMap shards_;
};

}  // namespace

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file) {
  ByteReader in(file);
  const auto length = in.read<uint64_t>();
  if (!length) return corrupt("not a safetensors file: it is shorter than 8 bytes");
  if (*length > kMaxHeader)
    return corrupt(fmt::format("not a safetensors file: its header would have {} bytes; at most {} are allowed",
                               *length, kMaxHeader));
  const auto header = in.take(*length);
  if (!header) return corrupt("the file ends inside the header; is the download complete?");
  const std::string_view json(reinterpret_cast<const char*>(header->data()), header->size());
  HeaderEvents events;
  if (!json.starts_with('{') || !read_json(json, events))
    return corrupt(fmt::format("the header is not as safetensors has it: {}",
                               events.problem().empty() ? "it does not begin with {" : events.problem()));

  const auto data = *in.take(in.remaining());
  std::vector<PlacedTensor> placed;
  for (HeaderEntry& entry : events.take()) {
    auto tensor = place(std::move(entry), data);
    if (!tensor) return std::unexpected(std::move(tensor.error()));
    placed.push_back(std::move(*tensor));
  }
  std::ranges::sort(placed, {}, [](const PlacedTensor& t) { return std::pair(t.begin, t.end); });
  if (auto tiled = check_tiling(placed, data.size()); !tiled) return std::unexpected(std::move(tiled.error()));
  std::vector<TensorEntry> entries;
  for (PlacedTensor& tensor : placed) entries.push_back(std::move(tensor.entry));
  return entries;
}

Result<ShardMap> parse_shard_index(std::string_view json) {
  if (json.size() > kMaxHeader)
    return corrupt(fmt::format("it has {} bytes; at most {} are allowed", json.size(), kMaxHeader));
  IndexEvents events;
  if (!read_json(json, events)) return corrupt(events.problem());
  if (!events.has_map()) return corrupt("it has no object weight_map", "weight_map");
  return events.take();
}

}  // namespace quire::weights
