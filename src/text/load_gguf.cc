#include <span>

#include "fmt/core.h"
#include "text/load.h"

namespace quire::text {

namespace {

// The value of a key that may be absent: nothing then, an error if it has another type.
template <class T, class Get>
Result<std::optional<T>> optional_key(const weights::GgufFile& file, const std::string& key, Get get) {
  if (!file.has(key)) return std::nullopt;
  auto value = (file.*get)(key);
  if (!value) return std::unexpected(value.error());
  return std::optional<T>(std::move(*value));
}

// Fills fields from keys, and remembers the first error.
class Reader {
 public:
  explicit Reader(const weights::GgufFile& file) : file_(file) {}

  template <class T, class Get>
  void read(std::string_view name, std::optional<T>& field, Get get) {
    keep<T>(name, get, [&field](T value) { field = std::move(value); });
  }
  template <class T, class Get>
  void read(std::string_view name, T& field, Get get) {
    keep<T>(name, get, [&field](T value) { field = std::move(value); });
  }

  std::optional<Error> error() const { return error_; }

 private:
  template <class T, class Get, class Store>
  void keep(std::string_view name, Get get, Store store) {
    auto value = optional_key<T>(file_, fmt::format("tokenizer.ggml.{}", name), get);
    if (!value) {
      if (!error_) error_ = value.error();
    } else if (*value) {
      store(std::move(**value));
    }
  }

  const weights::GgufFile& file_;
  std::optional<Error> error_;
};

Result<std::vector<int32_t>> token_types(const weights::GgufFile& file) {
  auto numbers = optional_key<std::vector<int64_t>>(file, "tokenizer.ggml.token_type", &weights::GgufFile::integers);
  if (!numbers) return std::unexpected(numbers.error());
  if (!*numbers) return std::vector<int32_t>{};
  std::vector<int32_t> types;
  types.reserve((*numbers)->size());
  // An unknown number is an unknown type, however large.
  for (const int64_t number : **numbers) types.push_back(number > 0 && number < 100 ? static_cast<int32_t>(number) : 0);
  return types;
}

void update(Sha256& hash, std::string_view text) {
  const uint64_t size = text.size();
  hash.update(std::as_bytes(std::span(&size, 1)));
  hash.update(std::as_bytes(std::span(text)));
}

Sha256Digest digest_of(const GgufTokenizerData& data, const ChatTemplateSource& source) {
  Sha256 hash;
  update(hash, data.model);
  update(hash, data.pre);
  for (const std::string_view token : data.tokens) update(hash, token);
  for (const std::string_view merge : data.merges) update(hash, merge);
  hash.update(std::as_bytes(std::span(data.scores)));
  hash.update(std::as_bytes(std::span(data.token_types)));
  for (const auto& id : {data.bos, data.eos, data.unk, data.pad, data.eot, data.eom}) {
    update(hash, id ? std::to_string(*id) : "");
  }
  for (const auto& choice : {data.add_bos, data.add_eos, data.add_space_prefix}) {
    update(hash, choice ? std::to_string(*choice) : "");
  }
  update(hash, source.text);
  update(hash, source.tool_use);
  return hash.finish();
}

}  // namespace

Result<GgufTokenizerData> read_tokenizer(const weights::GgufFile& file) {
  using weights::GgufFile;
  GgufTokenizerData data;
  auto model = file.string("tokenizer.ggml.model");
  if (!model) return std::unexpected(model.error());
  data.model = *model;
  auto types = token_types(file);
  if (!types) return std::unexpected(types.error());
  data.token_types = std::move(*types);

  Reader reader(file);
  reader.read("pre", data.pre, &GgufFile::string);
  reader.read("tokens", data.tokens, &GgufFile::strings);
  reader.read("scores", data.scores, &GgufFile::floats);
  reader.read("merges", data.merges, &GgufFile::strings);
  reader.read("bos_token_id", data.bos, &GgufFile::integer);
  reader.read("eos_token_id", data.eos, &GgufFile::integer);
  reader.read("unknown_token_id", data.unk, &GgufFile::integer);
  reader.read("padding_token_id", data.pad, &GgufFile::integer);
  reader.read("eot_token_id", data.eot, &GgufFile::integer);
  reader.read("eom_token_id", data.eom, &GgufFile::integer);
  reader.read("add_bos_token", data.add_bos, &GgufFile::boolean);
  reader.read("add_eos_token", data.add_eos, &GgufFile::boolean);
  reader.read("add_space_prefix", data.add_space_prefix, &GgufFile::boolean);
  if (reader.error()) return std::unexpected(*reader.error());
  return data;
}

Result<std::optional<ModelText>> load_text(const weights::GgufFile& file) {
  if (!file.has("tokenizer.ggml.model")) return std::nullopt;
  auto data = read_tokenizer(file);
  if (!data) return std::unexpected(data.error());
  if (data->model == "none" || data->model == "no_vocab") return std::nullopt;
  auto tokenizer = Tokenizer::from_gguf(*data);
  if (!tokenizer) return std::unexpected(tokenizer.error());

  ChatTemplateSource source;
  for (const auto& [key, field] : {std::pair("tokenizer.chat_template", &source.text),
                                   std::pair("tokenizer.chat_template.tool_use", &source.tool_use)}) {
    auto text = optional_key<std::string_view>(file, key, &weights::GgufFile::string);
    if (!text) return std::unexpected(text.error());
    *field = text->value_or("");
  }
  const SpecialIds& special = tokenizer->special_ids();
  for (const auto& [name, id] : {std::pair("bos_token", special.bos), std::pair("eos_token", special.eos),
                                 std::pair("unk_token", special.unk), std::pair("pad_token", special.pad)}) {
    if (id) source.special_tokens.emplace(name, tokenizer->name(*id));
  }

  ModelText text{.tokenizer = std::move(*tokenizer), .chat_template = {}, .digest = digest_of(*data, source)};
  if (!source.text.empty()) {
    auto chat_template = ChatTemplate::compile(source);
    if (!chat_template) return std::unexpected(chat_template.error());
    text.chat_template = std::move(*chat_template);
  }
  return text;
}

}  // namespace quire::text
