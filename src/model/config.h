// Typed reading of a checkpoint's configuration, with every value checked.
//
// A HuggingFaceConfig is config.json; a GgufConfig is GGUF metadata under the architecture's own prefix. Both answer
// with errors that name the key. Optional getters return the fallback only where the key is absent or null. Both note
// which keys were looked for, so that whoever made a model of them can tell what it did not understand: they belong to
// one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "quire/request.h"
#include "weights/checkpoint.h"

namespace quire::model {

// kUnsupported: what the key says, and what it must say here.
std::unexpected<Error> not_supported(const std::string& key, std::string_view value, std::string_view want);

class HuggingFaceConfig {
 public:
  static Result<HuggingFaceConfig> parse(std::string_view config_json, std::string_view generation_config_json);
  // The object at `key` with the outer values beside it and `defaults`, a JSON object, in between: what composite
  // configurations say of one of their models, which leave out whatever is the reference's default.
  Result<HuggingFaceConfig> section(std::string_view key, std::string_view defaults) const;
  HuggingFaceConfig(HuggingFaceConfig&&) noexcept;
  ~HuggingFaceConfig();

  // Keys may name nested values: "rope_parameters/rope_theta".
  bool has(std::string_view key) const;      // present and not null
  bool is_null(std::string_view key) const;  // present, and null
  Result<int> integer(std::string_view key, int low, int high) const;
  Result<int> integer_or(std::string_view key, int low, int high, int fallback) const;
  Result<double> number(std::string_view key) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;
  Result<std::vector<int>> integers(std::string_view key, int low, int high) const;
  // The keys of an object, in ascending order.
  Result<std::vector<std::string>> keys(std::string_view key) const;
  // Present, and not null, false or empty.
  bool has_content(std::string_view key) const;

  // The outermost keys with content that none of the above was called for.
  std::vector<std::string> not_asked_for() const;

  // Whether there is an object of that name; kCorruptFile where it is something else.
  Result<bool> has_section(std::string_view key) const;

  // eos_token_id of generation_config.json, else of config.json, else of its text_config: a number or a list, all below
  // `vocab_size`.
  Result<std::vector<TokenId>> end_tokens(int vocab_size) const;

 private:
  struct Content;
  explicit HuggingFaceConfig(std::unique_ptr<Content> content);
  std::unique_ptr<Content> content_;
};

class GgufConfig {
 public:
  explicit GgufConfig(const weights::GgufFile& file, std::string architecture);

  const weights::GgufFile& file() const { return file_; }
  bool has(std::string_view key) const;
  // Keys are without the architecture's prefix: "attention.head_count".
  Result<int> integer(std::string_view key, int low, int high) const;
  Result<int> integer_or(std::string_view key, int low, int high, int fallback) const;
  Result<double> number(std::string_view key) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string_or(std::string_view key, std::string fallback) const;
  Result<std::vector<int>> integers(std::string_view key, int low, int high) const;  // booleans count as 0 and 1

  // The keys of the architecture that none of the above was called for.
  std::vector<std::string> not_asked_for() const;

  // The tokenizer's end tokens: eos and eot ids, all below `vocab_size`, and tokens that are known to end a turn by
  // their text.
  Result<std::vector<TokenId>> end_tokens(int vocab_size) const;
  Result<int> vocab_size() const;

 private:
  std::string full(std::string_view key) const;
  const weights::GgufFile& file_;
  std::string architecture_;
  mutable std::set<std::string, std::less<>> asked_;  // without the prefix
};

// The text of config.json with `overrides`, a JSON object, put into it: objects are merged, everything else replaced,
// also by null. kInvalidRequest names hf_overrides, kCorruptFile is the configuration's fault.
Result<std::string> with_overrides(std::string_view config_json, std::string_view overrides);

// For reading many values: moves that of `result` to `to`, or keeps the first error in `error`.
template <class T, class U>
void take(Result<T> result, U& to, std::optional<Error>& error) {
  if (result)
    to = static_cast<U>(*result);
  else if (!error)
    error = std::move(result.error());
}

// Bounds that no sane model leaves; they keep products of sizes inside int64_t.
inline constexpr int kMaxLayers = 4096;
inline constexpr int kMaxWidth = 1 << 20;
inline constexpr int kMaxHeads = 4096;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxPositions = 1 << 24;
inline constexpr int kMaxVocabulary = 1 << 24;

}  // namespace quire::model
