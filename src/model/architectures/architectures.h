// The architectures that Quire knows. Each file maps a checkpoint's configuration and tensor names to a ModelSpec.
#pragma once

#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

Result<ModelSpec> llama_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> llama_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen3_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_5_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen3_5_from_gguf(const GgufConfig& config);
Result<ModelSpec> gemma3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> gemma3_from_gguf(const GgufConfig& config);

// The spec of an opened checkpoint; kUnsupported names the architecture and lists those that are known.
Result<ModelSpec> make_spec(const weights::Checkpoint& checkpoint);

}  // namespace quire::model
