// A Tokenizer turns text into token ids and back. It comes from a tokenizer.json or from the metadata of a GGUF file.
//
// Token ids are 0 to vocab_size() - 1; some may name no token. A token has a name (the vocabulary's own spelling, such
// as "Ġthe" or "▁the") and a piece: the bytes that it adds to a text, which need not be whole UTF-8 characters. Special
// tokens (BOS, end of turn) are made from text only where the caller asks for it.
//
// Immutable; any number of threads may use one at the same time. Views that it returns end with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/request.h"

struct quire_text_tokenizer;
struct quire_text_vocabulary;

namespace quire::text {

// The tokenizer keys of a GGUF file ("tokenizer.ggml."...), as they stand there; absent keys are empty. The strings are
// needed only while the tokenizer is made.
struct GgufTokenizerData {
  std::string_view model;  // "gpt2" or "llama"
  std::string_view pre;    // the pre-tokenizer's name, with "gpt2"
  std::vector<std::string_view> tokens;
  std::vector<float> scores;
  std::vector<int32_t> token_types;
  std::vector<std::string_view> merges;
  std::optional<int64_t> bos, eos, unk, pad, eot, eom;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

struct EncodeOptions {
  bool add_special = true;     // add what the model wants around a text, such as BOS
  bool parse_special = false;  // recognise special tokens in the text, as in a rendered chat template
};

// How the first token of a whole text loses the space that encoding put before it.
enum class LeadingSpace : uint8_t { kKeep, kDropOne, kDropAll };

// The ids with a role. A tokenizer.json names none: they are in tokenizer_config.json.
struct SpecialIds {
  std::optional<TokenId> bos, eos, unk, pad;
};

class Tokenizer {
 public:
  // kCorruptFile or kUnsupported (an unknown decoder) name what is wrong. Truncation and padding of the file are
  // ignored.
  static Result<Tokenizer> from_json(std::string_view json);
  // kUnsupported names an unknown model or pre-tokenizer; kCorruptFile a list or id that does not fit.
  static Result<Tokenizer> from_gguf(const GgufTokenizerData& data);

  // kInvalidRequest if `text` is not UTF-8.
  Result<std::vector<TokenId>> encode(std::string_view text, EncodeOptions options) const;

  // The text of `ids` as a whole: malformed UTF-8 becomes U+FFFD, and a leading space that encoding added is left out.
  // kInvalidRequest if an id is not of this vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids, bool skip_special) const;

  int32_t vocab_size() const { return static_cast<int32_t>(flags_.size()); }
  // False for an id that is out of range or names no token.
  bool contains(TokenId id) const;
  std::optional<TokenId> find(std::string_view name) const;

  // Empty for an id that names no token.
  std::string_view name(TokenId id) const;
  std::string_view piece(TokenId id) const;
  bool is_special(TokenId id) const;

  const SpecialIds& special_ids() const { return special_; }
  // Ids that end a generation by the file's own account, ascending; empty for a tokenizer.json.
  const std::vector<TokenId>& end_tokens() const { return end_tokens_; }
  LeadingSpace leading_space() const { return leading_space_; }

  // For grammars (text/grammar.h): the tokens of a model of `vocab_size`, as a trie. It outlives the tokenizer.
  Result<std::shared_ptr<const quire_text_vocabulary>> grammar_vocabulary(std::span<const TokenId> end_tokens,
                                                                          int64_t vocab_size) const;

  // For the loader: what tokenizer_config.json says.
  void set_special_ids(const SpecialIds& ids) { special_ = ids; }

 private:
  struct Free {
    void operator()(quire_text_tokenizer* tokenizer) const;
  };
  using Handle = std::unique_ptr<quire_text_tokenizer, Free>;
  explicit Tokenizer(Handle handle);
  std::string_view string_at(const char* bytes, std::span<const uint32_t> offsets, TokenId id) const;

  Handle handle_;
  // The tables of the Rust half: token i is bytes[offsets[i], offsets[i + 1]).
  const char* name_bytes_ = nullptr;
  const char* piece_bytes_ = nullptr;
  std::span<const uint32_t> name_offsets_;
  std::span<const uint32_t> piece_offsets_;
  std::span<const uint8_t> flags_;
  LeadingSpace leading_space_ = LeadingSpace::kKeep;
  SpecialIds special_;
  std::vector<TokenId> end_tokens_;
};

}  // namespace quire::text
