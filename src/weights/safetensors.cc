#include "weights/safetensors.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_parse.h"

namespace quire::weights {

struct SafetensorsFiles::Content {
  std::vector<MappedFile> files;  // the tensors view these
  TensorIndex index;
};

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kShardIndex = "model.safetensors.index.json";

std::unexpected<Error> in_file(const std::filesystem::path& path, Error error) {
  error.message = fmt::format("{}: {}", in_quotes(path.native()), error.message);
  return std::unexpected(std::move(error));
}

struct OpenedShard {
  MappedFile file;
  std::vector<TensorEntry> tensors;
};

Result<OpenedShard> open_shard(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return std::unexpected(std::move(file.error()));
  auto tensors = parse_safetensors(file->bytes());
  if (!tensors) return in_file(path, std::move(tensors.error()));
  return OpenedShard{std::move(*file), std::move(*tensors)};
}

Result<ShardMap> read_shard_index(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  if (!file) return std::unexpected(file.error());
  auto shards = parse_shard_index({reinterpret_cast<const char*>(file->bytes().data()), file->size()});
  if (!shards) return in_file(path, std::move(shards.error()));
  return shards;
}

}  // namespace

SafetensorsFiles::SafetensorsFiles(std::unique_ptr<Content> content) : content_(std::move(content)) {}
SafetensorsFiles::~SafetensorsFiles() = default;

Result<std::unique_ptr<SafetensorsFiles>> SafetensorsFiles::open(const std::filesystem::path& folder) {
  auto content = std::make_unique<Content>();
  // Reads one file; of a sharded model, the tensors that the index places there.
  const auto add = [&](const std::string& name, const ShardMap* placed) -> Result<void> {
    auto shard = open_shard(folder / name);
    if (!shard) return std::unexpected(std::move(shard.error()));
    for (TensorEntry& tensor : shard->tensors) {
      if (placed != nullptr) {
        const auto place = placed->find(tensor.tensor.name);
        if (place == placed->end() || place->second != name) continue;
      }
      if (auto added = content->index.add(std::move(tensor)); !added)
        return in_file(folder / name, std::move(added.error()));
    }
    content->files.push_back(std::move(shard->file));
    return {};
  };

  std::error_code ignored;
  if (std::filesystem::exists(folder / kSingleFile, ignored)) {
    if (auto added = add(kSingleFile, nullptr); !added) return std::unexpected(std::move(added.error()));
    return std::unique_ptr<SafetensorsFiles>(new SafetensorsFiles(std::move(content)));
  }
  const auto shards = read_shard_index(folder / kShardIndex);
  if (!shards) return std::unexpected(shards.error());
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *shards) names.insert(shard);
  for (const std::string& name : names)
    if (auto added = add(name, &*shards); !added) return std::unexpected(std::move(added.error()));
  for (const auto& [tensor, shard] : *shards)
    if (!content->index.knows(tensor))
      return in_file(folder / kShardIndex,
                     {ErrorKind::kCorruptFile,
                      fmt::format("tensor {} is not in {}", in_quotes(tensor), in_quotes(shard)), tensor});
  return std::unique_ptr<SafetensorsFiles>(new SafetensorsFiles(std::move(content)));
}

const Tensor* SafetensorsFiles::find(std::string_view name) const { return content_->index.find(name); }
std::span<const Tensor> SafetensorsFiles::tensors() const { return content_->index.tensors(); }
Result<const Tensor*> SafetensorsFiles::require(std::string_view name) const { return content_->index.require(name); }
std::optional<StoredTensor> SafetensorsFiles::stored(std::string_view name) const {
  return content_->index.stored(name);
}
std::vector<std::string_view> SafetensorsFiles::names() const { return content_->index.names(); }

}  // namespace quire::weights
