#include <fmt/format.h>

#include <array>
#include <string_view>

#include "model/architectures/architectures.h"

namespace quire::model {
namespace {

struct HuggingFaceEntry {
  std::string_view name;  // in config.json's `architectures`
  Result<ModelSpec> (*make)(const HuggingFaceConfig&);
};
constexpr std::array kHuggingFace = {
    HuggingFaceEntry{"LlamaForCausalLM", llama_from_hugging_face},
    HuggingFaceEntry{"Qwen3ForCausalLM", qwen3_from_hugging_face},
    HuggingFaceEntry{"Qwen3_5ForCausalLM", qwen3_5_from_hugging_face},
    HuggingFaceEntry{"Gemma3ForCausalLM", gemma3_from_hugging_face},
};

struct GgufEntry {
  std::string_view name;  // general.architecture
  Result<ModelSpec> (*make)(const GgufConfig&);
};
constexpr std::array kGguf = {
    GgufEntry{"llama", llama_from_gguf},
    GgufEntry{"qwen3", qwen3_from_gguf},
    GgufEntry{"qwen35", qwen3_5_from_gguf},
    GgufEntry{"gemma3", gemma3_from_gguf},
};

template <class Table>
std::unexpected<Error> unsupported(std::string_view name, const Table& table) {
  std::string known;
  for (const auto& entry : table) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  return fail(ErrorKind::kUnsupported, fmt::format("architecture {} is not supported; supported are {}", name, known),
              "architecture");
}

Result<ModelSpec> from_hugging_face(const weights::Checkpoint& checkpoint) {
  auto config = HuggingFaceConfig::parse(checkpoint.config_json, checkpoint.generation_config_json);
  if (!config) return std::unexpected(config.error());
  auto names = config->strings("architectures");
  if (!names) return std::unexpected(names.error());
  if (names->empty()) return fail(ErrorKind::kCorruptFile, "configuration key architectures is empty", "architectures");
  for (const auto& entry : kHuggingFace) {
    if (names->front() != entry.name) continue;
    auto spec = entry.make(*config);
    if (!spec) return spec;
    auto end = config->end_tokens(spec->vocab_size);
    if (!end) return std::unexpected(end.error());
    spec->end_tokens = std::move(*end);
    auto extra = config->integer_or("num_nextn_predict_layers", 0, kMaxLayers, 0);
    if (!extra) return std::unexpected(extra.error());
    spec->unread_layers = *extra;
    return spec;
  }
  return unsupported(names->front(), kHuggingFace);
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
    return spec;
  }
  return unsupported(*name, kGguf);
}

}  // namespace

Result<ModelSpec> make_spec(const weights::Checkpoint& checkpoint) {
  return checkpoint.gguf != nullptr ? from_gguf(*checkpoint.gguf) : from_hugging_face(checkpoint);
}

}  // namespace quire::model
