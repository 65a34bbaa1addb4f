#include "api/reply.h"

#include <fmt/format.h>

#include <utility>

#include "api/json_writer.h"
#include "api/logprobs_json.h"
#include "base/sha256.h"

namespace quire::api {
namespace {

void write_head(JsonWriter& json, const ReplyHead& head, bool chunk) {
  json.key("id").value(head.id);
  json.key("object").value(!head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
  json.key("created").value(head.created);
  json.key("model").value(head.model);
  json.key("system_fingerprint").value(head.fingerprint);
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").value(usage.prompt_tokens);
  json.key("completion_tokens").value(usage.completion_tokens);
  json.key("total_tokens").value(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().key("cached_tokens").value(usage.cached_tokens).end_object();
  json.end_object();
}

// Of 9 letters and digits, since Mistral's templates take no other.
std::string call_id(std::string_view key, int answer, int call) {
  const std::string text = fmt::format("{}/{}/{}", key, answer, call);
  const Sha256Digest digest = sha256(std::as_bytes(std::span(text)));
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (size_t i = 0; i < 9; ++i) id += kLetters[std::to_integer<size_t>(digest[i]) % kLetters.size()];
  return id;
}

void write_ids(JsonWriter& json, std::span<const TokenId> ids) {
  json.begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

void write_ending(JsonWriter& json, const AnswerPiece& piece) {
  json.key("finish_reason");
  if (piece.finish_reason.empty()) {
    json.null();
  } else {
    json.value(piece.finish_reason);
  }
  json.key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&piece.stop_reason)) {
    json.value(*text);
  } else if (const auto* token = std::get_if<TokenId>(&piece.stop_reason)) {
    json.value(*token);
  } else {
    json.null();
  }
}

void write_logprobs(JsonWriter& json, const ReplyHead& head, const AnswerPiece& piece) {
  json.key("logprobs");
  const TokenNames names(head.tokenizer, head.tokens_as_ids);
  if (!piece.logprobs) {
    json.null();
  } else if (head.chat) {
    write_chat_logprobs(json, names, *piece.logprobs);
  } else {
    const PromptLogprobs prompt{.tokens = piece.prompt,
                                .logprobs = piece.prompt_logprobs.value_or(std::span<const PositionLogprobs>())};
    write_completion_logprobs(json, names, piece.echo ? prompt : PromptLogprobs{}, *piece.logprobs, piece.text_offset);
  }
}

void write_prompt_logprobs(JsonWriter& json, const ReplyHead& head, const AnswerPiece& piece) {
  json.key("prompt_logprobs");
  if (piece.prompt_logprobs) {
    write_position_maps(json, TokenNames(head.tokenizer, false), *piece.prompt_logprobs);
  } else {
    json.null();
  }
}

void write_prompt_ids(JsonWriter& json, const AnswerPiece& piece) {
  write_ids(json.key("prompt_token_ids"), piece.prompt);
}

// The call that begins at pieces[0], or, in a stream, goes on there; returns how many pieces it has.
size_t write_call(JsonWriter& json, const AnswerPiece& piece, std::span<const OutputPiece> pieces, bool chunk) {
  const OutputPiece& first = pieces.front();
  const bool begins = first.kind == OutputPiece::Kind::kCall;
  size_t count = begins ? 1 : 0;
  std::string arguments;
  for (; count < pieces.size() && pieces[count].kind == OutputPiece::Kind::kArguments; ++count)
    arguments += pieces[count].text;
  json.begin_object();
  if (chunk) json.key("index").value(first.call);
  if (begins) json.key("id").value(call_id(piece.call_key, piece.index, first.call)).key("type").value("function");
  json.key("function").begin_object();
  if (begins) json.key("name").value(first.text);
  json.key("arguments").value(arguments);
  json.end_object().end_object();
  return count;
}

void write_calls(JsonWriter& json, const AnswerPiece& piece, bool chunk) {
  std::span<const OutputPiece> rest = piece.pieces;
  bool any = false;
  while (!rest.empty()) {
    const bool call = rest[0].kind == OutputPiece::Kind::kCall || rest[0].kind == OutputPiece::Kind::kArguments;
    if (call && !std::exchange(any, true)) json.key("tool_calls").begin_array();
    rest = rest.subspan(call ? write_call(json, piece, rest, chunk) : 1);
  }
  if (any) json.end_array();
}

// What is said, reasoned and called: in a stream what there is of it, in a body content in any case.
void write_pieces(JsonWriter& json, const AnswerPiece& piece, bool chunk) {
  std::string content, reasoning;
  for (const OutputPiece& part : piece.pieces) {
    if (part.kind == OutputPiece::Kind::kContent) content += part.text;
    if (part.kind == OutputPiece::Kind::kReasoning) reasoning += part.text;
  }
  if (!reasoning.empty()) json.key("reasoning").value(reasoning).key("reasoning_content").value(reasoning);
  if (!content.empty() || (chunk && piece.pieces.empty())) {
    json.key("content").value(content);
  } else if (!chunk) {
    json.key("content");
    if (piece.pieces.empty()) {
      json.value("");
    } else {
      json.null();
    }
  }
  write_calls(json, piece, chunk);
}

void write_message(JsonWriter& json, const AnswerPiece& piece, bool chunk) {
  json.key(chunk ? "delta" : "message").begin_object();
  if (piece.first) json.key("role").value("assistant");
  if (piece.parsed) {
    write_pieces(json, piece, chunk);
  } else {
    json.key("content").value(piece.text);
  }
  if (!chunk) json.key("refusal").null();
  json.end_object();
}

void write_choice(JsonWriter& json, const ReplyHead& head, const AnswerPiece& piece, bool chunk) {
  json.begin_object().key("index").value(piece.index);
  if (head.chat) {
    write_message(json, piece, chunk);
  } else {
    json.key("text").value(piece.text);
  }
  write_logprobs(json, head, piece);
  write_ending(json, piece);
  if (head.return_token_ids) write_ids(json.key("token_ids"), piece.tokens);
  if (!head.chat && head.return_token_ids && piece.first) write_prompt_ids(json, piece);
  if (!head.chat && !chunk) write_prompt_logprobs(json, head, piece);
  json.end_object();
}

void write_quire(JsonWriter& json, std::string_view quire) {
  if (!quire.empty()) json.key("quire").raw(quire);
}

}  // namespace

std::string chunk_json(const ReplyHead& head, const AnswerPiece& piece, const std::optional<Usage>& usage,
                       bool say_usage) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  write_head(json, head, true);
  json.key("choices").begin_array();
  write_choice(json, head, piece, true);
  json.end_array();
  if (head.chat && head.return_token_ids && piece.first) write_prompt_ids(json, piece);
  if (usage) {
    write_usage(json, *usage);
  } else if (say_usage) {
    json.key("usage").null();
  }
  write_quire(json, piece.quire);
  json.end_object();
  return out;
}

std::string usage_chunk_json(const ReplyHead& head, const Usage& usage, std::string_view quire) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  write_head(json, head, true);
  json.key("choices").begin_array().end_array();
  write_usage(json, usage);
  write_quire(json, quire);
  json.end_object();
  return out;
}

std::string body_json(const ReplyHead& head, const std::vector<AnswerPiece>& answers, const Usage& usage) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  write_head(json, head, false);
  json.key("choices").begin_array();
  for (const AnswerPiece& answer : answers) write_choice(json, head, answer, false);
  json.end_array();
  write_usage(json, usage);
  if (head.chat) {
    write_prompt_logprobs(json, head, answers.front());
    if (head.return_token_ids) write_prompt_ids(json, answers.front());
  }
  write_quire(json, answers.front().quire);
  json.end_object();
  return out;
}

size_t offset_of(const ReplyHead& head, std::span<const TokenId> tokens) {
  const TokenNames names(head.tokenizer, head.tokens_as_ids);
  size_t characters = 0;
  for (const TokenId token : tokens) characters += names.characters(token);
  return characters;
}

std::string sse_event(std::string_view data) {
  std::string event;
  event.reserve(data.size() + 8);
  event += "data: ";
  event += data;
  event += "\n\n";
  return event;
}

}  // namespace quire::api
