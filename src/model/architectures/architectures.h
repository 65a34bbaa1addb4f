// The architectures that Quire knows. Each file maps a checkpoint's configuration and tensor names to a ModelSpec.
#pragma once

#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

Result<ModelSpec> llama_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> llama_from_gguf(const GgufConfig& config);
Result<ModelSpec> mistral_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen2_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_moe_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen3_moe_from_gguf(const GgufConfig& config);
Result<ModelSpec> gpt_oss_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> gpt_oss_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_5_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen3_5_from_gguf(const GgufConfig& config);
Result<ModelSpec> phi3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> phi3_from_gguf(const GgufConfig& config);
Result<ModelSpec> smollm3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> smollm3_from_gguf(const GgufConfig& config);
Result<ModelSpec> gemma2_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> gemma2_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_next_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> qwen3_next_from_gguf(const GgufConfig& config);
Result<ModelSpec> deepseek2_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> deepseek3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> glm4_moe_lite_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> deepseek2_from_gguf(const GgufConfig& config);
Result<ModelSpec> deepseek32_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> deepseek32_from_gguf(const GgufConfig& config);
Result<ModelSpec> glm_moe_dsa_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> glm_dsa_from_gguf(const GgufConfig& config);
Result<ModelSpec> gemma3_from_hugging_face(const HuggingFaceConfig& config);
Result<ModelSpec> gemma3_from_gguf(const GgufConfig& config);
Result<ModelSpec> qwen3_5_moe_from_gguf(const GgufConfig& config);
Result<ModelSpec> llama4_from_gguf(const GgufConfig& config);

// Models that files hold in several ways: which one, the tensors tell; null: none is known.
Result<ModelSpec> qwen2_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> qwen3_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> gemma3_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> qwen3_5_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> qwen3_5_moe_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> qwen3_5_moe_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> llama4_from_hugging_face(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> glm5_next_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors);
Result<ModelSpec> llama4_from_multimodal(const HuggingFaceConfig& config, const weights::TensorSource* tensors);

// The spec of an opened checkpoint; kUnsupported names the architecture and lists those that are known.
Result<ModelSpec> make_spec(const weights::Checkpoint& checkpoint);

}  // namespace quire::model
