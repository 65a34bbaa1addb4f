#include "api/logprobs_json.h"

#include <algorithm>
#include <vector>

#include "api/utf8.h"

namespace quire::api {
namespace {

// JSON has no infinity: this is what vLLM says for it.
float sayable(float logprob) { return std::max(logprob, -9999.0F); }

// Calls f for the token at this position and then for each of the likely ones that is another.
template <class F>
void for_each_candidate(const PositionLogprobs& position, F&& f) {
  f(position.token);
  for (const TokenLogprob& candidate : position.top) {
    if (candidate.token != position.token.token) f(candidate);
  }
}

void write_bytes(JsonWriter& json, const TokenNames& names, TokenId token) {
  json.key("bytes");
  if (!names.has_text()) {
    json.null();
    return;
  }
  json.begin_array();
  for (const char byte : names.bytes(token)) json.value(int{static_cast<unsigned char>(byte)});
  json.end_array();
}

void write_chat_candidate(JsonWriter& json, const TokenNames& names, const TokenLogprob& candidate) {
  json.key("token").value(names.of(candidate.token));
  json.key("logprob").value(sayable(candidate.logprob));
  write_bytes(json, names, candidate.token);
}

// Different tokens may have one name, such as half characters: the likelier one keeps it.
void write_names(JsonWriter& json, const TokenNames& names, const PositionLogprobs& position) {
  std::vector<std::string> written;
  json.begin_object();
  for_each_candidate(position, [&](const TokenLogprob& candidate) {
    std::string name;
    append_json_string(name, names.of(candidate.token));
    if (std::ranges::find(written, name) != written.end()) return;
    json.key(names.of(candidate.token)).value(sayable(candidate.logprob));
    written.push_back(std::move(name));
  });
  json.end_object();
}

}  // namespace

std::string TokenNames::of(TokenId token) const {
  if (as_ids_ || tokenizer_ == nullptr) return "token_id:" + std::to_string(token);
  return std::string(tokenizer_->piece(token));
}

size_t TokenNames::characters(TokenId token) const { return utf8_count(of(token)); }

void write_completion_logprobs(JsonWriter& json, const TokenNames& names, const PromptLogprobs& echo,
                               std::span<const PositionLogprobs> positions, size_t text_offset) {
  // The first echoed token has no log-probability: it is written apart in every list.
  const bool has_first = !echo.tokens.empty();
  const auto for_each = [&](auto&& f) {
    for (const PositionLogprobs& position : echo.logprobs) f(position);
    for (const PositionLogprobs& position : positions) f(position);
  };
  json.begin_object().key("tokens").begin_array();
  if (has_first) json.value(names.of(echo.tokens.front()));
  for_each([&](const PositionLogprobs& position) { json.value(names.of(position.token.token)); });
  json.end_array().key("token_logprobs").begin_array();
  if (has_first) json.null();
  for_each([&](const PositionLogprobs& position) { json.value(sayable(position.token.logprob)); });
  json.end_array().key("top_logprobs").begin_array();
  if (has_first) json.null();
  for_each([&](const PositionLogprobs& position) { write_names(json, names, position); });
  json.end_array().key("text_offset").begin_array();
  const auto offset = [&](TokenId token) {
    json.value(text_offset);
    text_offset += names.characters(token);
  };
  if (has_first) offset(echo.tokens.front());
  for_each([&](const PositionLogprobs& position) { offset(position.token.token); });
  json.end_array().end_object();
}

void write_chat_logprobs(JsonWriter& json, const TokenNames& names, std::span<const PositionLogprobs> positions) {
  json.begin_object().key("content").begin_array();
  for (const PositionLogprobs& position : positions) {
    json.begin_object();
    write_chat_candidate(json, names, position.token);
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& candidate : position.top) {
      json.begin_object();
      write_chat_candidate(json, names, candidate);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

void write_position_maps(JsonWriter& json, const TokenNames& names, std::span<const PositionLogprobs> positions) {
  json.begin_array().null();
  for (const PositionLogprobs& position : positions) {
    json.begin_object();
    for_each_candidate(position, [&](const TokenLogprob& candidate) {
      json.key(std::to_string(candidate.token)).begin_object();
      json.key("logprob").value(sayable(candidate.logprob)).key("rank").value(candidate.rank).key("decoded_token");
      if (names.has_text()) {
        json.value(names.bytes(candidate.token));
      } else {
        json.null();
      }
      json.end_object();
    });
    json.end_object();
  }
  json.end_array();
}

}  // namespace quire::api
