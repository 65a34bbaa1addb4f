#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "model/architectures/architectures.h"
#include "model/architectures/understood.h"

namespace quire::model {
namespace {

struct HuggingFaceEntry {
  std::string_view name;  // in config.json's `architectures`
  Result<ModelSpec> (*make)(const HuggingFaceConfig&);
};
constexpr std::array kHuggingFace = {
    HuggingFaceEntry{"LlamaForCausalLM", llama_from_hugging_face},
    HuggingFaceEntry{"MistralForCausalLM", mistral_from_hugging_face},
    HuggingFaceEntry{"Qwen3MoeForCausalLM", qwen3_moe_from_hugging_face},
    HuggingFaceEntry{"GptOssForCausalLM", gpt_oss_from_hugging_face},
    HuggingFaceEntry{"Qwen3_5ForCausalLM", qwen3_5_from_hugging_face},
    HuggingFaceEntry{"Phi3ForCausalLM", phi3_from_hugging_face},
    HuggingFaceEntry{"SmolLM3ForCausalLM", smollm3_from_hugging_face},
    HuggingFaceEntry{"Gemma2ForCausalLM", gemma2_from_hugging_face},
    HuggingFaceEntry{"Qwen3NextForCausalLM", qwen3_next_from_hugging_face},
    HuggingFaceEntry{"DeepseekV2ForCausalLM", deepseek2_from_hugging_face},
    HuggingFaceEntry{"DeepseekV3ForCausalLM", deepseek3_from_hugging_face},
    HuggingFaceEntry{"Glm4MoeLiteForCausalLM", glm4_moe_lite_from_hugging_face},
    HuggingFaceEntry{"DeepseekV32ForCausalLM", deepseek32_from_hugging_face},
    HuggingFaceEntry{"GlmMoeDsaForCausalLM", glm_moe_dsa_from_hugging_face},
    HuggingFaceEntry{"Gemma3ForCausalLM", gemma3_from_hugging_face},
};

// What tensors are called depends on who wrote the file. Of composite ones the text model alone is run, from a section
// of the configuration.
struct VaryingEntry {
  std::string_view name;
  Result<ModelSpec> (*make)(const HuggingFaceConfig&, const weights::TensorSource*);
  bool composite;
};
constexpr std::array kVarying = {
    VaryingEntry{"Qwen2ForCausalLM", qwen2_from_hugging_face, false},
    VaryingEntry{"Qwen3ForCausalLM", qwen3_from_hugging_face, false},
    VaryingEntry{"Gemma3ForConditionalGeneration", gemma3_from_multimodal, true},
    VaryingEntry{"Qwen3_5ForConditionalGeneration", qwen3_5_from_multimodal, true},
    VaryingEntry{"Qwen3_5MoeForConditionalGeneration", qwen3_5_moe_from_multimodal, true},
    VaryingEntry{"Qwen3_5MoeForCausalLM", qwen3_5_moe_from_hugging_face, false},
    VaryingEntry{"Glm5NextForConditionalGeneration", glm5_next_from_multimodal, true},
    VaryingEntry{"Llama4ForConditionalGeneration", llama4_from_multimodal, true},
    VaryingEntry{"Llama4ForCausalLM", llama4_from_hugging_face, false},
};

struct GgufEntry {
  std::string_view name;  // general.architecture
  Result<ModelSpec> (*make)(const GgufConfig&);
};
constexpr std::array kGguf = {
    GgufEntry{"llama", llama_from_gguf},           GgufEntry{"qwen2", qwen2_from_gguf},
    GgufEntry{"qwen3", qwen3_from_gguf},           GgufEntry{"qwen3moe", qwen3_moe_from_gguf},
    GgufEntry{"qwen35", qwen3_5_from_gguf},        GgufEntry{"phi3", phi3_from_gguf},
    GgufEntry{"smollm3", smollm3_from_gguf},       GgufEntry{"gemma2", gemma2_from_gguf},
    GgufEntry{"gemma3", gemma3_from_gguf},         GgufEntry{"qwen3next", qwen3_next_from_gguf},
    GgufEntry{"deepseek2", deepseek2_from_gguf},   GgufEntry{"deepseek32", deepseek32_from_gguf},
    GgufEntry{"glm-dsa", glm_dsa_from_gguf},       GgufEntry{"gpt-oss", gpt_oss_from_gguf},
    GgufEntry{"qwen35moe", qwen3_5_moe_from_gguf}, GgufEntry{"llama4", llama4_from_gguf},
};

// The least number of letters to add, take away or change until one name is the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

template <class... Tables>
std::unexpected<Error> unsupported(std::string_view name, const Tables&... tables) {
  std::vector<std::string_view> known;
  const auto add = [&](const auto& table) {
    for (const auto& entry : table) known.push_back(entry.name);
  };
  (add(tables), ...);
  // Long names are compared by their beginning: a file may hold anything.
  const auto closest =
      *std::ranges::min_element(known, {}, [&](std::string_view k) { return distance(name.substr(0, 100), k); });
  return fail(ErrorKind::kUnsupported,
              fmt::format("architecture {} is not supported; the closest is {}, and supported are {}", name, closest,
                          fmt::join(known, ", ")),
              "architecture");
}

Result<ModelSpec> make(const std::string& name, const HuggingFaceConfig& config,
                       const weights::Checkpoint& checkpoint) {
  for (const auto& entry : kHuggingFace)
    if (name == entry.name) return entry.make(config);
  for (const auto& entry : kVarying)
    if (name == entry.name) return entry.make(config, checkpoint.tensors.get());
  return unsupported(name, kHuggingFace, kVarying);
}

Result<ModelSpec> from_hugging_face(const weights::Checkpoint& checkpoint) {
  auto config = HuggingFaceConfig::parse(checkpoint.config_json, checkpoint.generation_config_json);
  if (!config) return std::unexpected(config.error());
  auto names = config->strings("architectures");
  if (!names) return std::unexpected(names.error());
  if (names->empty()) return fail(ErrorKind::kCorruptFile, "configuration key architectures is empty", "architectures");
  auto spec = make(names->front(), *config, checkpoint);
  if (!spec) return spec;
  auto end = config->end_tokens(spec->vocab_size);
  if (!end) return std::unexpected(end.error());
  spec->end_tokens = std::move(*end);
  const auto varying = std::ranges::find(kVarying, names->front(), &VaryingEntry::name);
  if (varying != kVarying.end() && varying->composite) return spec;
  if (auto all = finish(*config, *spec); !all) return std::unexpected(all.error());
  return spec;
}

Result<ModelSpec> from_gguf(const weights::GgufFile& file) {
  auto name = file.string("general.architecture");
  if (!name) return std::unexpected(name.error());
  for (const auto& entry : kGguf) {
    if (*name != entry.name) continue;
    const GgufConfig config(file, std::string(*name));
    auto spec = entry.make(config);
    if (!spec) return spec;
    auto end = config.end_tokens(spec->vocab_size);
    if (!end) return std::unexpected(end.error());
    spec->end_tokens = std::move(*end);
    auto extra = config.integer_or("nextn_predict_layers", 0, kMaxLayers, 0);
    if (!extra) return std::unexpected(extra.error());
    spec->unread_layers = *extra;
    if (auto all = require_understood(config); !all) return std::unexpected(all.error());
    return spec;
  }
  return unsupported(*name, kGguf);
}

}  // namespace

Result<ModelSpec> make_spec(const weights::Checkpoint& checkpoint) {
  return checkpoint.gguf != nullptr ? from_gguf(*checkpoint.gguf) : from_hugging_face(checkpoint);
}

}  // namespace quire::model
