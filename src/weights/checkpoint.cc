#include "weights/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "weights/mapped_file.h"

namespace quire::weights {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfig = size_t{16} << 20;

Result<std::string> read_config(const fs::path& path) {
  const auto file = MappedFile::open(path);
  if (!file) return std::unexpected(file.error());
  if (file->size() > kMaxConfig)
    return fail(ErrorKind::kCorruptFile, fmt::format("{} has {} bytes; at most {} are allowed",
                                                     in_quotes(path.native()), file->size(), kMaxConfig));
  if (file->size() == 0) return fail(ErrorKind::kCorruptFile, fmt::format("{} is empty", in_quotes(path.native())));
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size());
}

Result<Checkpoint> open_gguf(const fs::path& path) {
  auto file = GgufFile::open(path);
  if (!file) return std::unexpected(std::move(file.error()));
  Checkpoint checkpoint;
  checkpoint.kind = Checkpoint::Kind::kGguf;
  checkpoint.path = path;
  checkpoint.gguf = file->get();
  checkpoint.tensors = std::move(*file);
  return checkpoint;
}

Result<Checkpoint> open_hugging_face(const fs::path& folder, const fs::path& config_path) {
  Checkpoint checkpoint;
  checkpoint.kind = Checkpoint::Kind::kHuggingFace;
  checkpoint.path = folder;
  const fs::path& chosen = config_path.empty() ? folder : config_path;
  std::error_code ignored;
  auto config = read_config(fs::is_directory(chosen, ignored) ? chosen / "config.json" : chosen);
  if (!config) return std::unexpected(std::move(config.error()));
  checkpoint.config_json = std::move(*config);
  if (fs::exists(folder / "generation_config.json", ignored)) {
    auto generation = read_config(folder / "generation_config.json");
    if (!generation) return std::unexpected(std::move(generation.error()));
    checkpoint.generation_config_json = std::move(*generation);
  }
  auto tensors = SafetensorsFiles::open(folder);
  if (!tensors) return std::unexpected(std::move(tensors.error()));
  checkpoint.safetensors = tensors->get();
  checkpoint.tensors = std::move(*tensors);
  return checkpoint;
}

// "NAME-00002-of-00003.gguf" and the like: found through the first part.
bool is_later_part(std::string_view name) {
  const auto number = name.size() < 20 ? std::string_view() : name.substr(name.size() - 20);
  return number.starts_with('-') && number.substr(6, 4) == "-of-" && number.substr(1, 5) != "00001";
}

// The names of the .gguf models in a folder, sorted, a split one by its first part.
std::vector<std::string> gguf_models(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().native();
    if (name.ends_with(".gguf") && !is_later_part(name)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

Result<Checkpoint> open_folder(const fs::path& folder, const fs::path& config) {
  std::error_code ignored;
  const bool has_config = !config.empty() || fs::exists(folder / "config.json", ignored);
  const bool has_safetensors =
      fs::exists(folder / "model.safetensors", ignored) || fs::exists(folder / "model.safetensors.index.json", ignored);
  if (has_config && has_safetensors) return open_hugging_face(folder, config);

  std::error_code error;
  const auto models = gguf_models(folder, error);
  if (error)
    return fail(ErrorKind::kUnsupported,
                fmt::format("cannot read the folder {}: {}", in_quotes(folder.native()), error.message()));
  if (models.size() == 1) return open_gguf(folder / models[0]);
  if (models.size() > 1)
    return fail(ErrorKind::kUnsupported,
                fmt::format("{} holds {} GGUF models; name one of them: {}", in_quotes(folder.native()), models.size(),
                            fmt::join(models, ", ")));
  return fail(
      ErrorKind::kUnsupported,
      fmt::format("{} holds no model: {}", in_quotes(folder.native()),
                  has_config        ? "there is a config.json, but no model.safetensors or model.safetensors.index.json"
                  : has_safetensors ? "there are safetensors, but no config.json"
                                    : "a .gguf file, or config.json with safetensors, is needed"));
}

Result<Checkpoint> open_file(const fs::path& path) {
  const auto file = MappedFile::open(path);
  if (!file) return std::unexpected(file.error());
  const auto head = file->bytes().first(std::min<size_t>(4, file->size()));
  const bool gguf = std::string_view(reinterpret_cast<const char*>(head.data()), head.size()) == "GGUF";
  if (gguf || path.extension() == ".gguf") return open_gguf(path);
  return fail(ErrorKind::kUnsupported,
              fmt::format("{} is no GGUF file; a .gguf file or a model's folder is needed", in_quotes(path.native())));
}

}  // namespace

Result<Checkpoint> open_checkpoint(const fs::path& path, const fs::path& config) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return fail(ErrorKind::kNotFound, fmt::format("there is no file or folder {}", in_quotes(path.native())));
  auto checkpoint = fs::is_directory(status) ? open_folder(path, config) : open_file(path);
  if (checkpoint && checkpoint->gguf != nullptr && !config.empty())
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("hf_config_path is of no use with {}: GGUF has its configuration in itself",
                            in_quotes(checkpoint->path.native())),
                "hf_config_path");
  return checkpoint;
}

size_t file_bytes(const Checkpoint& checkpoint) {
  size_t total = 0;
  if (checkpoint.safetensors != nullptr) {
    for (std::string_view name : checkpoint.safetensors->names())
      total += checkpoint.safetensors->stored(name)->data.size();
  } else {
    for (const Tensor& tensor : checkpoint.tensors->tensors()) total += tensor.bytes();
  }
  return total;
}

}  // namespace quire::weights
