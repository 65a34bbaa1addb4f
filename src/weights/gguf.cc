#include "weights/gguf.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "weights/gguf_parse.h"
#include "weights/mapped_file.h"
#include "weights/tensor_index.h"

namespace quire::weights {

struct GgufFile::Content {
  std::vector<MappedFile> files;  // everything else views these
  std::vector<GgufEntry> entries;
  std::map<std::string_view, const GgufEntry*> by_key;
  TensorIndex index;

  const GgufEntry* find(std::string_view key) const {
    const auto entry = by_key.find(key);
    return entry == by_key.end() ? nullptr : entry->second;
  }
};

namespace {

std::unexpected<Error> in_file(const std::filesystem::path& path, Error error) {
  error.message = fmt::format("{}: {}", in_quotes(path.native()), error.message);
  return std::unexpected(std::move(error));
}

// "STEM-00002-of-00003.gguf", as llama.cpp's gguf-split names its files.
std::string split_file_name(std::string_view stem, int64_t part, int64_t parts) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, part, parts);
}

// The paths of all parts, the first first, if `path` is named as part `number` of `parts`.
std::optional<std::vector<std::filesystem::path>> split_paths(const std::filesystem::path& path, int64_t number,
                                                              int64_t parts) {
  const std::string name = path.filename().native(), ending = split_file_name("", number, parts);
  if (!name.ends_with(ending)) return std::nullopt;
  const std::string_view stem = std::string_view(name).substr(0, name.size() - ending.size());
  std::vector<std::filesystem::path> paths;
  for (int64_t i = 1; i <= parts; ++i) paths.push_back(path.parent_path() / split_file_name(stem, i, parts));
  return paths;
}

struct OpenedPart {
  MappedFile file;
  GgufPart part;
};

Result<OpenedPart> open_part(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return std::unexpected(std::move(file.error()));
  auto part = parse_gguf(file->bytes());
  if (!part) return in_file(path, std::move(part.error()));
  return OpenedPart{std::move(*file), std::move(*part)};
}

// Of a value that is there but is no integer: -1.
int64_t integer_or(const std::vector<GgufEntry>& entries, std::string_view key, int64_t otherwise) {
  for (const GgufEntry& entry : entries)
    if (entry.key == key) return to_integer(entry).value_or(-1);
  return otherwise;
}

constexpr std::string_view kSplitCount = "split.count", kSplitNumber = "split.no";
constexpr int64_t kMaxParts = 99999;  // what the five digits of a name allow

// All parts of the model that `path` is, or is a part of.
Result<std::vector<OpenedPart>> open_parts(const std::filesystem::path& path) {
  auto given = open_part(path);
  if (!given) return std::unexpected(std::move(given.error()));
  const int64_t parts = integer_or(given->part.entries, kSplitCount, 1);
  std::vector<OpenedPart> opened;
  if (parts == 0 || parts == 1) {
    opened.push_back(std::move(*given));
    return opened;
  }
  const int64_t number = integer_or(given->part.entries, kSplitNumber, -1);
  if (parts < 0 || parts > kMaxParts || number < 0 || number >= parts)
    return in_file(path,
                   {ErrorKind::kCorruptFile, fmt::format("{} and {} are no part of a whole", kSplitNumber, kSplitCount),
                    std::string(kSplitCount)});
  const auto paths = split_paths(path, number + 1, parts);
  if (!paths)
    return in_file(
        path, {ErrorKind::kUnsupported, fmt::format("is part {} of {} of a split model and must be named {}",
                                                    number + 1, parts, split_file_name("NAME", number + 1, parts))});
  for (int64_t i = 0; i < parts; ++i) {
    auto part = open_part((*paths)[static_cast<size_t>(i)]);
    if (!part) return std::unexpected(std::move(part.error()));
    if (integer_or(part->part.entries, kSplitCount, 1) != parts ||
        integer_or(part->part.entries, kSplitNumber, -1) != i)
      return in_file(
          (*paths)[static_cast<size_t>(i)],
          {ErrorKind::kCorruptFile, fmt::format("{} and {} contradict the file's name", kSplitNumber, kSplitCount),
           std::string(kSplitCount)});
    opened.push_back(std::move(*part));
  }
  return opened;
}

}  // namespace

GgufFile::GgufFile(std::unique_ptr<Content> content) : content_(std::move(content)) {}
GgufFile::~GgufFile() = default;

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::filesystem::path& path) {
  auto parts = open_parts(path);
  if (!parts) return std::unexpected(std::move(parts.error()));
  auto content = std::make_unique<Content>();
  content->entries = std::move(parts->front().part.entries);
  for (const GgufEntry& entry : content->entries) content->by_key.emplace(entry.key, &entry);
  int64_t tensors = 0;
  for (OpenedPart& part : *parts) {
    content->files.push_back(std::move(part.file));
    for (TensorEntry& tensor : part.part.tensors) {
      if (auto added = content->index.add(std::move(tensor)); !added) return in_file(path, std::move(added.error()));
      ++tensors;
    }
  }
  const std::string_view total_key = "split.tensors.count";
  const int64_t total = integer_or(content->entries, total_key, tensors);
  if (total != tensors)
    return in_file(path, {ErrorKind::kCorruptFile,
                          fmt::format("{} is {}, but the parts have {} tensors", total_key, total, tensors),
                          std::string(total_key)});
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(content)));
}

const Tensor* GgufFile::find(std::string_view name) const { return content_->index.find(name); }
std::span<const Tensor> GgufFile::tensors() const { return content_->index.tensors(); }
Result<const Tensor*> GgufFile::require(std::string_view name) const { return content_->index.require(name); }

bool GgufFile::has(std::string_view key) const { return content_->find(key) != nullptr; }

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> out;
  for (const GgufEntry& entry : content_->entries) out.push_back(entry.key);
  return out;
}

namespace {

template <class T>
Result<T> convert(const GgufEntry* entry, std::string_view key, Result<T> (*conversion)(const GgufEntry&)) {
  if (entry == nullptr)
    return fail(ErrorKind::kNotFound, fmt::format("the GGUF metadata has no key {}", in_quotes(key)), std::string(key));
  return conversion(*entry);
}

}  // namespace

Result<std::string_view> GgufFile::string(std::string_view key) const {
  return convert(content_->find(key), key, to_string);
}

Result<int64_t> GgufFile::integer(std::string_view key) const { return convert(content_->find(key), key, to_integer); }

Result<double> GgufFile::number(std::string_view key) const { return convert(content_->find(key), key, to_number); }

Result<bool> GgufFile::boolean(std::string_view key) const { return convert(content_->find(key), key, to_boolean); }

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  return convert(content_->find(key), key, to_strings);
}

Result<std::vector<float>> GgufFile::floats(std::string_view key) const {
  return convert(content_->find(key), key, to_floats);
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  return convert(content_->find(key), key, to_integers);
}

}  // namespace quire::weights
