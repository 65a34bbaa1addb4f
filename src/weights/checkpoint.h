// A Checkpoint is a model on disk, opened: its tensors and where its configuration is.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "quire/error.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"
#include "weights/tensor_source.h"

namespace quire::weights {

struct Checkpoint {
  enum class Kind { kHuggingFace, kGguf };

  Kind kind = Kind::kHuggingFace;
  std::filesystem::path path;                     // the folder, or the .gguf file
  std::unique_ptr<TensorSource> tensors;          // never null
  const GgufFile* gguf = nullptr;                 // kGguf: `tensors` itself, with its metadata
  const SafetensorsFiles* safetensors = nullptr;  // kHuggingFace: what `tensors` reads, tensors of any dtype
  std::string config_json;                        // kHuggingFace: the text of config.json, not yet parsed
  std::string quantisation;            // how the files keep quantised matrices, for people; empty: as GGUF, or none
  std::string generation_config_json;  // kHuggingFace: the text of generation_config.json, or empty
};

// Opens a .gguf file, a folder with one .gguf model in it, or a folder with config.json and safetensors.
// kNotFound, kUnsupported (nothing that is a model) or kCorruptFile.
// Its tensors are those that files keep whole (model/open_checkpoint.h has the others).
// `config`, if not empty, is read instead of the folder's config.json: a file, or a folder with one. kInvalidRequest
// names hf_config_path if the model is GGUF, which has its configuration in itself.
Result<Checkpoint> open_checkpoint(const std::filesystem::path& path, const std::filesystem::path& config = {});

// Of all tensors in the checkpoint's files: of safetensors in any dtype, of GGUF in those formats that can be read.
size_t file_bytes(const Checkpoint& checkpoint);

}  // namespace quire::weights
