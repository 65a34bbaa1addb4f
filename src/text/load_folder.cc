#include <nlohmann/json.hpp>
#include <span>

#include "base/utf8.h"
#include "fmt/core.h"
#include "text/load.h"
#include "weights/mapped_file.h"

namespace quire::text {

namespace {

using nlohmann::json;

constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr size_t kMaxConfigBytes = size_t{64} << 20;

std::string_view text_of(const weights::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

// Nothing if there is no such file.
Result<std::optional<weights::MappedFile>> open_optional(const std::filesystem::path& path, size_t limit) {
  auto file = weights::MappedFile::open(path);
  if (!file) {
    if (file.error().kind == ErrorKind::kNotFound) return std::nullopt;
    return std::unexpected(file.error());
  }
  if (file->size() > limit) {
    return fail(ErrorKind::kCorruptFile,
                fmt::format("{} has {} bytes; at most {} are read", path.string(), file->size(), limit));
  }
  return std::optional(std::move(*file));
}

std::unexpected<Error> bad_config(std::string_view what) {
  return fail(ErrorKind::kCorruptFile, fmt::format("tokenizer_config.json: {}", what));
}

// A special token is its text, or an object that has the text as "content".
std::optional<std::string> token_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

// All keys such as bos_token. A null means that the model has no such token.
Result<std::map<std::string, std::string>> special_tokens(const json& config) {
  std::map<std::string, std::string> tokens;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token") || value.is_null() || value.is_boolean()) continue;
    auto text = token_text(value);
    if (!text) return bad_config(fmt::format("{} must be a string or an object with \"content\"", in_quotes(key)));
    tokens.emplace(key, std::move(*text));
  }
  return tokens;
}

struct Templates {
  std::string text;
  std::string tool_use;
};

// "chat_template" is a string, or a list of {"name", "template"}, of which "default" and "tool_use" have a meaning
// here.
Result<Templates> templates_of(const json& config) {
  Templates templates;
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return templates;
  if (found->is_string()) {
    templates.text = found->get<std::string>();
    return templates;
  }
  if (!found->is_array()) return bad_config("\"chat_template\" must be a string or a list");
  for (const json& entry : *found) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() || !entry.contains("template") ||
        !entry["template"].is_string()) {
      return bad_config("an entry of \"chat_template\" must have the strings \"name\" and \"template\"");
    }
    if (entry["name"] == "default") templates.text = entry["template"].get<std::string>();
    if (entry["name"] == "tool_use") templates.tool_use = entry["template"].get<std::string>();
  }
  return templates;
}

Result<SpecialIds> special_ids(const Tokenizer& tokenizer, const std::map<std::string, std::string>& tokens) {
  SpecialIds ids;
  for (const auto& [key, field] : {std::pair("bos_token", &ids.bos), std::pair("eos_token", &ids.eos),
                                   std::pair("unk_token", &ids.unk), std::pair("pad_token", &ids.pad)}) {
    const auto token = tokens.find(key);
    if (token == tokens.end()) continue;
    *field = tokenizer.find(token->second);
    if (!*field) {
      return bad_config(fmt::format("\"{}\" is {}, which tokenizer.json does not have", key, in_quotes(token->second)));
    }
  }
  return ids;
}

}  // namespace

Result<std::optional<ModelText>> load_text(const std::filesystem::path& folder) {
  auto tokenizer_file = open_optional(folder / "tokenizer.json", kMaxTokenizerBytes);
  if (!tokenizer_file) return std::unexpected(tokenizer_file.error());
  if (!*tokenizer_file) return std::nullopt;
  auto config_file = open_optional(folder / "tokenizer_config.json", kMaxConfigBytes);
  if (!config_file) return std::unexpected(config_file.error());
  auto template_file = open_optional(folder / "chat_template.jinja", kMaxConfigBytes);
  if (!template_file) return std::unexpected(template_file.error());

  Sha256 hash;
  for (const auto* file : {&*tokenizer_file, &*config_file, &*template_file}) {
    const uint64_t size = *file ? (*file)->size() : 0;
    hash.update(std::as_bytes(std::span(&size, 1)));
    if (*file) hash.update((*file)->bytes());
  }

  auto tokenizer = Tokenizer::from_json(text_of(**tokenizer_file));
  if (!tokenizer) return std::unexpected(tokenizer.error());
  json config = json::object();
  if (*config_file) config = json::parse(text_of(**config_file), nullptr, false);
  if (!config.is_object()) return bad_config("not a JSON object");
  auto tokens = special_tokens(config);
  if (!tokens) return std::unexpected(tokens.error());
  auto ids = special_ids(*tokenizer, *tokens);
  if (!ids) return std::unexpected(ids.error());
  tokenizer->set_special_ids(*ids);

  auto templates = templates_of(config);
  if (!templates) return std::unexpected(templates.error());
  if (*template_file) templates->text = text_of(**template_file);
  ModelText text{.tokenizer = std::move(*tokenizer), .chat_template = {}, .digest = hash.finish()};
  if (!templates->text.empty()) {
    auto chat_template = ChatTemplate::compile(
        {.text = templates->text, .tool_use = templates->tool_use, .special_tokens = std::move(*tokens)});
    if (!chat_template) return std::unexpected(chat_template.error());
    text.chat_template = std::move(*chat_template);
  }
  return text;
}

}  // namespace quire::text
