#include "model/architectures/multimodal.h"

#include <iterator>

#include "model/architectures/understood.h"

namespace quire::model {

Result<ModelSpec> make_text_model(const HuggingFaceConfig& config, const TextSection& section,
                                  const std::function<Result<ModelSpec>(const HuggingFaceConfig&)>& make) {
  auto text = config.section("text_config", section.defaults);
  if (!text) return std::unexpected(text.error());
  const char* tied = "tie_word_embeddings";
  const std::string tied_in_section = std::string("text_config/") + tied;
  if (config.has(tied) && config.has(tied_in_section)) {
    auto outer = config.boolean_or(tied, false), inner = config.boolean_or(tied_in_section, false);
    if (!outer) return std::unexpected(outer.error());
    if (!inner) return std::unexpected(inner.error());
    if (*outer != *inner)
      return fail(ErrorKind::kUnsupported, "tie_word_embeddings and text_config/tie_word_embeddings do not agree",
                  tied);
  }
  for (std::string_view key : section.of_images) static_cast<void>(text->has(key));
  auto spec = make(*text);
  if (!spec) return spec;
  if (auto all = finish(*text, *spec); !all) return std::unexpected(all.error());
  return spec;
}

std::string find_root(const weights::TensorSource* tensors, std::initializer_list<const char*> roots) {
  for (const std::string root : roots)
    if (tensors != nullptr && tensors->find(root + "embed_tokens.weight") != nullptr) return root;
  return *std::prev(roots.end());
}

}  // namespace quire::model
