#include "cache/layer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/strict_json.h"

namespace quire::cache {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 4;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr int64_t kMostLength = int64_t{1} << 24;  // of a request: a trace's tokens are kept in memory
constexpr int64_t kMostBytes = int64_t{1} << 32;

const char* const kKeys[] = {"count",     "kind",        "window",          "chunk",           "num_kv_heads",
                             "head_size", "dtype",       "state_bytes",     "value_head_size", "block_size",
                             "latent",    "checkpoints", "tokens_per_state"};

std::optional<DType> dtype_of(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kU8})
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
}

// Reads one entry of "layers"; the first thing that is wrong is kept, later reads give their fallback.
class Entry {
 public:
  Entry(const json& object, size_t index) : object_(object), index_(index) {}

  int64_t integer(const char* key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) {
    if (!object_.contains(key)) {
      if (!fallback) wrong(fmt::format("\"{}\" is missing", key));
      return fallback.value_or(low);
    }
    const json& value = object_[key];
    if (value.is_number_integer() && value >= low && value <= high) return value.get<int64_t>();
    wrong(fmt::format("\"{}\" must be an integer from {} to {}", key, low, high));
    return low;
  }
  std::string text(const char* key, const char* fallback) {
    if (!object_.contains(key)) return fallback;
    if (object_[key].is_string()) return object_[key].get<std::string>();
    wrong(fmt::format("\"{}\" must be a string", key));
    return fallback;
  }
  bool boolean(const char* key, bool fallback) {
    if (!object_.contains(key)) return fallback;
    if (object_[key].is_boolean()) return object_[key].get<bool>();
    wrong(fmt::format("\"{}\" must be true or false", key));
    return fallback;
  }
  bool has(const char* key) const { return object_.contains(key); }
  void wrong(std::string_view what) {
    if (problem_.empty()) problem_ = fmt::format("layers[{}]: {}", index_, what);
  }
  const std::string& problem() const { return problem_; }

 private:
  const json& object_;
  size_t index_;
  std::string problem_;
};

// Keys that only one kind has, or needs.
void check_kind(Entry& entry, const std::string& kind) {
  const std::pair<const char*, const char*> own[] = {
      {"window", "sliding_window"}, {"chunk", "chunked_local"}, {"checkpoints", "recurrent"}};
  for (const auto& [key, owner] : own)
    if (entry.has(key) && kind != owner) entry.wrong(fmt::format("\"{}\" is for \"kind\": \"{}\" alone", key, owner));
  for (const char* key : {"latent", "tokens_per_state"})
    if (entry.has(key) && (kind == "recurrent" || kind == "circular_buffer"))
      entry.wrong(fmt::format("\"{}\" is not for \"kind\": \"{}\"", key, kind));
  if (kind == "circular_buffer" && !entry.has("block_size"))
    entry.wrong("\"block_size\" is missing: the rows of the ring");
  if (kind == "recurrent" && !entry.has("state_bytes"))
    entry.wrong("\"state_bytes\" is missing: the bytes of one recurrent state");
}

Retention retention_of(Entry& entry) {
  const std::string kind = entry.text("kind", "full");
  check_kind(entry, kind);
  if (kind == "full") return FullRetention{};
  if (kind == "sliding_window") return SlidingWindow{.window = entry.integer("window", 1, kMostTokens)};
  if (kind == "chunked_local") return ChunkedLocal{.chunk = entry.integer("chunk", 1, kMostTokens)};
  if (kind == "circular_buffer") return CircularBuffer{};
  if (kind == "recurrent") {
    return RecurrentState{.checkpoints = entry.boolean("checkpoints", true) ? RecurrentState::Checkpoints::kAlign
                                                                            : RecurrentState::Checkpoints::kNone};
  }
  entry.wrong(fmt::format(
      "\"kind\" must be full, sliding_window, chunked_local, circular_buffer or recurrent, not \"{}\"", kind));
  return FullRetention{};
}

// Of one head: K and V, one latent row, or what the file says.
int64_t state_bytes_of(Entry& entry, const CacheSpec& spec) {
  if (entry.has("state_bytes")) {
    for (const char* key : {"head_size", "value_head_size"})
      if (entry.has(key)) entry.wrong(fmt::format("it has both \"state_bytes\" and \"{}\"", key));
    return entry.integer("state_bytes", 1, kMostBytes);
  }
  const auto element = static_cast<int64_t>(size_of(spec.dtype));
  if (spec.storage == Storage::kLatent && entry.has("value_head_size"))
    entry.wrong("\"value_head_size\" is not for latent rows: they have no values");
  const int64_t head = entry.integer("head_size", 1, 1 << 20);
  const int64_t value = spec.storage == Storage::kLatent ? 0 : entry.integer("value_head_size", 0, 1 << 20, head);
  return (head + value) * element;
}

CacheSpec spec_of(Entry& entry, int64_t block_size) {
  CacheSpec spec;
  spec.retention = retention_of(entry);
  if (entry.boolean("latent", false)) spec.storage = Storage::kLatent;
  if (keeps<RecurrentState>(spec)) spec.storage = Storage::kState;
  if (keeps<CircularBuffer>(spec)) spec.prefix_cacheable = false;
  const std::string dtype = entry.text("dtype", "bf16");
  if (const auto known = dtype_of(dtype)) {
    spec.dtype = *known;
  } else {
    entry.wrong(fmt::format("\"dtype\" must be f32, f16, bf16, i8 or u8, not \"{}\"", dtype));
  }
  spec.num_kv_heads = entry.integer("num_kv_heads", 1, 1 << 16, 1);
  if (spec.num_kv_heads > 1 && spec.storage != Storage::kHeads)
    entry.wrong("\"num_kv_heads\" must be 1: all heads share a latent row or a state");
  spec.tokens_per_state = entry.integer("tokens_per_state", 1, kMostTokens, 1);
  spec.block_size = entry.integer("block_size", 1, kMostTokens, block_size);
  spec.state_bytes = state_bytes_of(entry, spec);
  return spec;
}

std::unexpected<Error> wrong_file(std::string_view what) {
  return fail(ErrorKind::kInvalidRequest, fmt::format("layer file: {}", what), "layers");
}

Result<void> add_layers(const json& value, size_t index, int64_t block_size, std::vector<CacheLayer>& layers) {
  if (!value.is_object()) return wrong_file(fmt::format("layers[{}] must be an object", index));
  Entry entry(value, index);
  for (const auto& [key, unused] : value.items())
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) entry.wrong(fmt::format("unknown key \"{}\"", key));
  const int64_t count = entry.integer("count", 1, kMostLayers, 1);
  const CacheSpec spec = spec_of(entry, block_size);
  if (entry.problem().empty()) {
    if (auto ok = validate(spec); !ok) entry.wrong(ok.error().message);
  }
  if (!entry.problem().empty()) return wrong_file(entry.problem());
  if (std::ssize(layers) + count > kMostLayers) return wrong_file(fmt::format("more than {} layers", kMostLayers));
  for (int64_t i = 0; i < count; ++i) layers.push_back({fmt::format("layers.{}", layers.size()), spec});
  return {};
}

}  // namespace

Result<LayerFile> parse_layer_file(std::string_view text, int64_t block_size) {
  if (auto strict = check_strict_json(text, kMostDepth); !strict) return wrong_file(strict.error().message);
  const json object = json::parse(text);
  if (!object.is_object()) return wrong_file("it must be a JSON object");
  for (const auto& [key, value] : object.items())
    if (key != "max_model_len" && key != "layers") return wrong_file(fmt::format("unknown key \"{}\"", key));
  LayerFile file;
  const auto length = object.find("max_model_len");
  if (length == object.end() || !length->is_number_integer() || *length < 1 || *length > kMostLength)
    return wrong_file(fmt::format("\"max_model_len\" must be an integer from 1 to {}", kMostLength));
  file.max_model_len = length->get<int64_t>();
  const auto layers = object.find("layers");
  if (layers == object.end() || !layers->is_array() || layers->empty())
    return wrong_file("\"layers\" must be a list with at least one layer");
  for (size_t i = 0; i < layers->size(); ++i)
    if (auto ok = add_layers((*layers)[i], i, block_size, file.layers); !ok) return std::unexpected(ok.error());
  return file;
}

}  // namespace quire::cache
