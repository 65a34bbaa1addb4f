// Finds the text side of a model: its tokenizer and chat template, in a folder of Hugging Face's layout or in a GGUF
// file.
//
// A folder has tokenizer.json, tokenizer_config.json and, in newer ones, chat_template.jinja, which goes before the
// config's. A model without a tokenizer is no error: it is served by token ids.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/sha256.h"
#include "quire/error.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/gguf.h"

namespace quire::text {

struct ModelText {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  Sha256Digest digest;  // of all that tokenizer and template were made from
};

// Nothing if the folder has no tokenizer.json.
Result<std::optional<ModelText>> load_text(const std::filesystem::path& folder);
// Nothing if the file has no tokenizer.
Result<std::optional<ModelText>> load_text(const weights::GgufFile& file);

// The tokenizer keys of a file; the strings are views of it. kNotFound if it names no tokenizer model.
Result<GgufTokenizerData> read_tokenizer(const weights::GgufFile& file);

}  // namespace quire::text
