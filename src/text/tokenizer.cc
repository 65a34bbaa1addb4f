#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "fmt/core.h"
#include "text/boundary.h"
#include "text/detokenizer.h"

namespace quire::text {

namespace {

std::optional<TokenId> id_of(int64_t id) { return id < 0 ? std::nullopt : std::optional(static_cast<TokenId>(id)); }

std::vector<quire_text_str> borrow_all(const std::vector<std::string_view>& texts) {
  std::vector<quire_text_str> borrowed(texts.size());
  std::ranges::transform(texts, borrowed.begin(), borrow);
  return borrowed;
}

int32_t choice(std::optional<bool> value) { return value ? static_cast<int32_t>(*value) : -1; }

}  // namespace

void Tokenizer::Free::operator()(quire_text_tokenizer* tokenizer) const { quire_text_tokenizer_free(tokenizer); }

Tokenizer::Tokenizer(Handle handle) : handle_(std::move(handle)) {
  quire_text_vocab vocab;
  quire_text_tokenizer_vocab(handle_.get(), &vocab);
  name_bytes_ = reinterpret_cast<const char*>(vocab.name_bytes);
  piece_bytes_ = reinterpret_cast<const char*>(vocab.piece_bytes);
  name_offsets_ = {vocab.name_offsets, vocab.token_count + 1};
  piece_offsets_ = {vocab.piece_offsets, vocab.token_count + 1};
  flags_ = {vocab.flags, vocab.token_count};
  leading_space_ = static_cast<LeadingSpace>(vocab.leading_space);
  special_ = {id_of(vocab.bos), id_of(vocab.eos), id_of(vocab.unk), id_of(vocab.pad)};
  end_tokens_.assign(vocab.end_ids, vocab.end_ids + vocab.end_id_count);
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json) {
  quire_text_tokenizer* raw = nullptr;
  quire_text_bytes message{};
  const int32_t status = quire_text_tokenizer_from_json(borrow(json), &raw, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  return Tokenizer(Handle(raw));
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufTokenizerData& data) {
  const std::vector<quire_text_str> tokens = borrow_all(data.tokens);
  const std::vector<quire_text_str> merges = borrow_all(data.merges);
  const quire_text_gguf metadata{
      .model = borrow(data.model),
      .pre = borrow(data.pre),
      .tokens = tokens.data(),
      .token_count = tokens.size(),
      .scores = data.scores.data(),
      .score_count = data.scores.size(),
      .token_types = data.token_types.data(),
      .token_type_count = data.token_types.size(),
      .merges = merges.data(),
      .merge_count = merges.size(),
      .bos = data.bos.value_or(-1),
      .eos = data.eos.value_or(-1),
      .unk = data.unk.value_or(-1),
      .pad = data.pad.value_or(-1),
      .eot = data.eot.value_or(-1),
      .eom = data.eom.value_or(-1),
      .add_bos = choice(data.add_bos),
      .add_eos = choice(data.add_eos),
      .add_space_prefix = choice(data.add_space_prefix),
  };
  quire_text_tokenizer* raw = nullptr;
  quire_text_bytes message{};
  const int32_t status = quire_text_tokenizer_from_gguf(&metadata, &raw, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  return Tokenizer(Handle(raw));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  quire_text_ids ids{};
  quire_text_bytes message{};
  const int32_t status = quire_text_tokenizer_encode(handle_.get(), borrow(text), options.add_special,
                                                     options.parse_special, &ids, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  std::vector<TokenId> result(ids.data, ids.data + ids.size);
  quire_text_free_ids(ids);
  return result;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  DetokenizeStream stream(*this, {.skip_special = skip_special, .at_start = true});
  std::string text;
  for (const TokenId id : ids) {
    if (!contains(id)) {
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("token id {} is not in the vocabulary (0 to {})", id, vocab_size() - 1));
    }
    stream.push_to(text, id);
  }
  text += stream.flush();
  return text;
}

bool Tokenizer::contains(TokenId id) const {
  return id >= 0 && id < vocab_size() && (flags_[static_cast<size_t>(id)] & QUIRE_TEXT_TOKEN_HOLE) == 0;
}

std::optional<TokenId> Tokenizer::find(std::string_view name) const {
  return id_of(quire_text_tokenizer_find(handle_.get(), borrow(name)));
}

std::string_view Tokenizer::string_at(const char* bytes, std::span<const uint32_t> offsets, TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const auto i = static_cast<size_t>(id);
  return {bytes + offsets[i], offsets[i + 1] - offsets[i]};
}

std::string_view Tokenizer::name(TokenId id) const { return string_at(name_bytes_, name_offsets_, id); }

std::string_view Tokenizer::piece(TokenId id) const { return string_at(piece_bytes_, piece_offsets_, id); }

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && (flags_[static_cast<size_t>(id)] & QUIRE_TEXT_TOKEN_SPECIAL) != 0;
}

Result<std::shared_ptr<const quire_text_vocabulary>> Tokenizer::grammar_vocabulary(std::span<const TokenId> end_tokens,
                                                                                   int64_t vocab_size) const {
  const std::vector<uint32_t> ends(end_tokens.begin(), end_tokens.end());
  quire_text_vocabulary* raw = nullptr;
  quire_text_bytes message{};
  const int32_t status = quire_text_vocabulary_build(handle_.get(), ends.data(), ends.size(),
                                                     static_cast<size_t>(vocab_size), &raw, &message);
  if (status != QUIRE_TEXT_OK) return failure(status, message);
  return std::shared_ptr<quire_text_vocabulary>(raw, quire_text_vocabulary_free);
}

}  // namespace quire::text
