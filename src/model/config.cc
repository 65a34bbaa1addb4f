#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace quire::model {
namespace {

using Json = nlohmann::json;

std::unexpected<Error> bad(std::string_view key, std::string_view want) {
  return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} must be {}", key, want), std::string(key));
}

std::unexpected<Error> missing(std::string_view key) {
  return fail(ErrorKind::kCorruptFile, fmt::format("configuration key {} is missing", key), std::string(key));
}

Result<int> checked(int64_t value, std::string_view key, int low, int high) {
  if (value < low || value > high) return bad(key, fmt::format("between {} and {}, not {}", low, high, value));
  return static_cast<int>(value);
}

Result<int> integer_of(const Json& value, std::string_view key, int low, int high) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return bad(key, "a smaller integer");
  if (!value.is_number_integer()) return bad(key, "an integer");
  return checked(value.get<int64_t>(), key, low, high);
}

// Refuses deep nesting, so that no file can exhaust the stack.
void require_shallow(int depth) {
  constexpr int kMaxDepth = 64;
  if (depth > kMaxDepth) throw std::runtime_error("nested too deeply");
}

// Without the library's own tag: "[json.exception.out_of_range.406] ".
std::string_view plain(std::string_view message) {
  if (message.starts_with("[json.exception")) message.remove_prefix(std::min(message.find("] ") + 2, message.size()));
  return message;
}

Result<Json> parse_object(std::string_view text, const char* file) {
  std::string key;  // the last that was read
  const auto note = [&](int depth, Json::parse_event_t event, Json& value) {
    require_shallow(depth);
    if (event == Json::parse_event_t::key) key = value.get<std::string>();
    return true;
  };
  try {
    Json json = Json::parse(text, note);
    if (!json.is_object()) return fail(ErrorKind::kCorruptFile, fmt::format("{} is not a JSON object", file));
    return json;
  } catch (const Json::parse_error& e) {
    return fail(ErrorKind::kCorruptFile, fmt::format("{} is no valid JSON, from byte {} on", file, e.byte));
  } catch (const std::exception& e) {
    const std::string where = key.empty() ? "" : fmt::format(", key {}", key.substr(0, 100));
    return fail(ErrorKind::kCorruptFile, fmt::format("{}{}: {}", file, where, plain(e.what())));
  }
}

// Not null, false or empty.
bool is_content(const Json& value) {
  if (value.is_null() || value == Json(false) || value == Json("")) return false;
  return !(value.is_structured() && value.empty());
}

// Adds the end token that `key` names, if it is a token of the vocabulary.
Result<void> add_token(std::vector<TokenId>& tokens, int64_t id, std::string_view key, int vocab_size) {
  if (id < 0 || id >= vocab_size)
    return bad(key, fmt::format("a token of the vocabulary of {}, not {}", vocab_size, id));
  const auto token = static_cast<TokenId>(id);
  if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  return {};
}

}  // namespace

std::unexpected<Error> not_supported(const std::string& key, std::string_view value, std::string_view want) {
  return fail(ErrorKind::kUnsupported,
              fmt::format("configuration key {} is {}, which is not supported; it must be {}", key, value, want), key);
}

struct HuggingFaceConfig::Content {
  Json config;
  Json generation;
  std::set<std::string, std::less<>> asked = {};  // outermost keys that somebody looked for

  // The value at a path of keys separated by '/', or nothing.
  const Json* look(std::string_view key) {
    const Json* at = &config;
    asked.emplace(key.substr(0, key.find('/')));
    while (true) {
      const size_t slash = key.find('/');
      if (!at->is_object()) return nullptr;
      const auto it = at->find(std::string(key.substr(0, slash)));
      if (it == at->end()) return nullptr;
      at = &*it;
      if (slash == std::string_view::npos) return at;
      key.remove_prefix(slash + 1);
    }
  }

  // The same, but null counts as nothing.
  const Json* find(std::string_view key) {
    const Json* value = look(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
};

HuggingFaceConfig::HuggingFaceConfig(std::unique_ptr<Content> content) : content_(std::move(content)) {}
HuggingFaceConfig::HuggingFaceConfig(HuggingFaceConfig&&) noexcept = default;
HuggingFaceConfig::~HuggingFaceConfig() = default;

Result<HuggingFaceConfig> HuggingFaceConfig::parse(std::string_view config_json,
                                                   std::string_view generation_config_json) {
  auto config = parse_object(config_json, "config.json");
  if (!config) return std::unexpected(config.error());
  Json generation = Json::object();
  if (!generation_config_json.empty()) {
    auto parsed = parse_object(generation_config_json, "generation_config.json");
    if (!parsed) return std::unexpected(parsed.error());
    generation = std::move(*parsed);
  }
  return HuggingFaceConfig(std::make_unique<Content>(std::move(*config), std::move(generation)));
}

Result<HuggingFaceConfig> HuggingFaceConfig::section(std::string_view key, std::string_view defaults) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_object()) return bad(key, "an object");
  Json merged = content_->config;
  merged.erase(std::string(key));
  merged.update(Json::parse(defaults));
  merged.update(*value);
  return HuggingFaceConfig(std::make_unique<Content>(std::move(merged), content_->generation));
}

std::vector<std::string> HuggingFaceConfig::not_asked_for() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : content_->config.items())
    if (!content_->asked.contains(key) && is_content(value)) keys.push_back(key);
  return keys;
}

bool HuggingFaceConfig::is_null(std::string_view key) const {
  const Json* value = content_->look(key);
  return value != nullptr && value->is_null();
}

bool HuggingFaceConfig::has(std::string_view key) const { return content_->find(key) != nullptr; }

Result<int> HuggingFaceConfig::integer(std::string_view key, int low, int high) const {
  const Json* value = content_->find(key);
  return value == nullptr ? missing(key) : integer_of(*value, key, low, high);
}

Result<int> HuggingFaceConfig::integer_or(std::string_view key, int low, int high, int fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

Result<double> HuggingFaceConfig::number(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_number()) return bad(key, "a number");
  const auto number = value->get<double>();
  if (!std::isfinite(number)) return bad(key, "a finite number");
  return number;
}

Result<double> HuggingFaceConfig::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

Result<bool> HuggingFaceConfig::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return bad(key, "true or false");
  return value->get<bool>();
}

Result<std::string> HuggingFaceConfig::string(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_string()) return bad(key, "a string");
  return value->get<std::string>();
}

Result<std::string> HuggingFaceConfig::string_or(std::string_view key, std::string fallback) const {
  return has(key) ? string(key) : fallback;
}

Result<std::vector<std::string>> HuggingFaceConfig::strings(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  std::vector<std::string> out;
  if (!value->is_array()) return bad(key, "a list of strings");
  for (const Json& item : *value) {
    if (!item.is_string()) return bad(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

Result<std::vector<double>> HuggingFaceConfig::numbers(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_array()) return bad(key, "a list of numbers");
  std::vector<double> out;
  for (const Json& item : *value) {
    if (!item.is_number() || !std::isfinite(item.get<double>())) return bad(key, "a list of finite numbers");
    out.push_back(item.get<double>());
  }
  return out;
}

Result<std::vector<int>> HuggingFaceConfig::integers(std::string_view key, int low, int high) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_array()) return bad(key, "a list of integers");
  std::vector<int> out;
  for (const Json& item : *value) {
    auto number = integer_of(item, key, low, high);
    if (!number) return std::unexpected(std::move(number.error()));
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<std::string>> HuggingFaceConfig::keys(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_object()) return bad(key, "an object");
  std::vector<std::string> out;
  for (const auto& [name, item] : value->items()) out.push_back(name);
  return out;
}

bool HuggingFaceConfig::has_content(std::string_view key) const {
  const Json* value = content_->find(key);
  return value != nullptr && is_content(*value);
}

Result<bool> HuggingFaceConfig::has_section(std::string_view key) const {
  const Json* value = content_->find(key);
  if (value != nullptr && !value->is_object()) return bad(key, "an object");
  return value != nullptr;
}

Result<std::vector<TokenId>> HuggingFaceConfig::end_tokens(int vocab_size) const {
  std::vector<TokenId> tokens;
  const auto text = content_->config.find("text_config");
  const Json none = Json::object();
  const Json& section = text != content_->config.end() && text->is_object() ? *text : none;
  for (const Json* json : std::initializer_list<const Json*>{&content_->generation, &content_->config, &section}) {
    const auto it = json->find("eos_token_id");
    if (it == json->end() || it->is_null()) continue;
    const Json list = it->is_array() ? *it : Json::array({*it});
    for (const Json& item : list) {
      if (!item.is_number_integer()) return bad("eos_token_id", "a token id or a list of them");
      const bool huge = item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX;
      const int64_t id = huge ? INT64_MAX : item.get<int64_t>();
      if (auto added = add_token(tokens, id, "eos_token_id", vocab_size); !added) return std::unexpected(added.error());
    }
    return tokens;
  }
  return tokens;
}

Result<std::string> with_overrides(std::string_view config_json, std::string_view overrides) {
  auto config = parse_object(config_json, "config.json");
  if (!config) return std::unexpected(config.error());
  auto changes = parse_object(overrides, "hf_overrides");
  if (!changes) return fail(ErrorKind::kInvalidRequest, std::move(changes.error().message), "hf_overrides");
  config->update(*changes, true);
  return config->dump();
}

GgufConfig::GgufConfig(const weights::GgufFile& file, std::string architecture)
    : file_(file), architecture_(std::move(architecture)) {}

std::string GgufConfig::full(std::string_view key) const {
  asked_.emplace(key);
  return architecture_ + "." + std::string(key);
}

std::vector<std::string> GgufConfig::not_asked_for() const {
  const std::string prefix = architecture_ + ".";
  std::vector<std::string> keys;
  for (std::string_view key : file_.keys())
    if (key.starts_with(prefix) && !asked_.contains(key.substr(prefix.size())))
      keys.emplace_back(key.substr(prefix.size()));
  return keys;
}

bool GgufConfig::has(std::string_view key) const { return file_.has(full(key)); }

Result<int> GgufConfig::integer(std::string_view key, int low, int high) const {
  auto value = file_.integer(full(key));
  if (!value) return std::unexpected(value.error());
  return checked(*value, full(key), low, high);
}

Result<int> GgufConfig::integer_or(std::string_view key, int low, int high, int fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

Result<double> GgufConfig::number(std::string_view key) const {
  auto value = file_.number(full(key));
  if (value && !std::isfinite(*value)) return bad(full(key), "a finite number");
  return value;
}

Result<double> GgufConfig::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

Result<bool> GgufConfig::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? file_.boolean(full(key)) : fallback;
}

Result<std::string> GgufConfig::string_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  auto value = file_.string(full(key));
  if (!value) return std::unexpected(value.error());
  return std::string(*value);
}

Result<std::vector<int>> GgufConfig::integers(std::string_view key, int low, int high) const {
  auto values = file_.integers(full(key));
  if (!values) return std::unexpected(values.error());
  std::vector<int> out;
  for (const int64_t value : *values) {
    auto number = checked(value, full(key), low, high);
    if (!number) return std::unexpected(number.error());
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<TokenId>> GgufConfig::end_tokens(int vocab_size) const {
  std::vector<TokenId> tokens;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!file_.has(key)) continue;
    auto id = file_.integer(key);
    if (!id) return std::unexpected(id.error());
    if (auto added = add_token(tokens, *id, key, vocab_size); !added) return std::unexpected(added.error());
  }
  // Files often name only one of several; llama.cpp finds the others by these texts.
  static constexpr std::array<std::string_view, 7> kTurnEnds = {
      "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|return|>", "<|call|>"};
  if (!file_.has("tokenizer.ggml.tokens")) return tokens;
  auto texts = file_.strings("tokenizer.ggml.tokens");
  if (!texts) return std::unexpected(texts.error());
  const auto has_text = [&](std::string_view text) { return std::ranges::find(*texts, text) != texts->end(); };
  // In Harmony, gpt-oss's format, a message ends with it, of which a turn has several.
  const std::string_view no_end = has_text("<|return|>") && has_text("<|call|>") ? "<|end|>" : "";
  for (size_t i = 0; i < texts->size(); ++i)
    if ((*texts)[i] != no_end && std::ranges::find(kTurnEnds, (*texts)[i]) != kTurnEnds.end())
      if (auto added = add_token(tokens, static_cast<int64_t>(i), "tokenizer.ggml.tokens", vocab_size); !added)
        return std::unexpected(added.error());
  return tokens;
}

Result<int> GgufConfig::vocab_size() const {
  if (has("vocab_size")) return integer("vocab_size", 1, kMaxVocabulary);
  const weights::Tensor* embedding = file_.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    return fail(ErrorKind::kCorruptFile, "tensor token_embd.weight is missing or not a matrix", "token_embd.weight");
  return checked(embedding->shape[0], "token_embd.weight rows", 1, kMaxVocabulary);
}

}  // namespace quire::model
