// Checkpoints of several models at once, of which the text model alone is run: its configuration is a section of
// config.json, and what its tensors begin with depends on who wrote the file. Source: transformers'
// ...ForConditionalGeneration.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

struct TextSection {
  std::string_view defaults;                    // a JSON object: what text_config leaves out
  std::span<const std::string_view> of_images;  // keys beside it, and in it, that say nothing of text
};

// What `make` makes of text_config, with the outer values beside its own. kUnsupported names a key that is not
// understood, or tie_word_embeddings where both say it and do not agree.
Result<ModelSpec> make_text_model(const HuggingFaceConfig& config, const TextSection& section,
                                  const std::function<Result<ModelSpec>(const HuggingFaceConfig&)>& make);

// The first of `roots` that an embedding is found under; the last where there is none, or no tensors are known (null).
std::string find_root(const weights::TensorSource* tensors, std::initializer_list<const char*> roots);

}  // namespace quire::model
