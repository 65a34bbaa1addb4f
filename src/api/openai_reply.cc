#include "api/openai_reply.h"

#include <utility>
#include <vector>

#include "api/json_writer.h"
#include "api/logprobs_json.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string event(std::string_view data) {
  std::string text;
  text.reserve(data.size() + 8);
  text += "data: ";
  text += data;
  text += "\n\n";
  return text;
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").value(usage.prompt_tokens);
  json.key("completion_tokens").value(usage.completion_tokens);
  json.key("total_tokens").value(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().key("cached_tokens").value(usage.cached_tokens).end_object();
  if (usage.reasoning_tokens > 0)
    json.key("completion_tokens_details")
        .begin_object()
        .key("reasoning_tokens")
        .value(usage.reasoning_tokens)
        .end_object();
  json.end_object();
}

void write_ids(JsonWriter& json, std::span<const TokenId> ids) {
  json.begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

void write_ending(JsonWriter& json, std::string_view finish_reason, const StopReason& stop_reason) {
  json.key("finish_reason").value_or_null(finish_reason).key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&stop_reason)) {
    json.value(*text);
  } else if (const auto* token = std::get_if<TokenId>(&stop_reason)) {
    json.value(*token);
  } else {
    json.null();
  }
}

void write_prompt_logprobs(JsonWriter& json, const text::Tokenizer* tokenizer, const AnswerPiece& piece) {
  json.key("prompt_logprobs");
  if (piece.prompt_logprobs) {
    write_position_maps(json, TokenNames(tokenizer, false), *piece.prompt_logprobs);
  } else {
    json.null();
  }
}

void write_quire(JsonWriter& json, std::string_view quire) {
  if (!quire.empty()) json.key("quire").raw(quire);
}

std::string text_of(const AnswerPiece& piece, Kind kind) {
  std::string text;
  for (const OutputPiece& part : piece.pieces)
    if (part.kind == kind) text += part.text;
  return text;
}

// What both have in common: the frame around their choices.
class OpenAiReply : public Reply {
 public:
  OpenAiReply(ReplyHead head, const GenerationOptions& options)
      : head_(std::move(head)),
        names_(head_.tokenizer, options.return_tokens_as_token_ids),
        token_ids_(options.return_token_ids),
        say_usage_(options.include_usage),
        usage_in_all_(options.include_usage && options.continuous_usage_stats) {}

  std::string body(std::span<const AnswerPiece> answers, const Usage& usage) const final {
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    write_head(json, false);
    json.key("choices").begin_array();
    for (const AnswerPiece& answer : answers) write_choice(json, answer, 0, false);
    json.end_array();
    write_usage(json, usage);
    write_beside_choices(json, answers.front(), false);
    write_quire(json, answers.front().quire);
    json.end_object();
    return out;
  }

  std::string begin(const Usage&) final { return {}; }

  std::string piece(const AnswerPiece& piece, const Usage& usage) final {
    const auto index = static_cast<size_t>(piece.index);
    if (offsets_.size() <= index) offsets_.resize(index + 1);
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    write_head(json, true);
    json.key("choices").begin_array();
    write_choice(json, piece, offsets_[index], true);
    json.end_array();
    write_beside_choices(json, piece, true);
    if (usage_in_all_) {
      write_usage(json, usage);
    } else if (say_usage_) {
      json.key("usage").null();
    }
    if (!say_usage_) write_quire(json, piece.quire);  // else the chunk with usage is the last
    json.end_object();
    if (piece.logprobs) offsets_[index] += characters(piece.tokens) + (piece.echo ? characters(piece.prompt) : 0);
    return event(out);
  }

  std::string end(const Usage& usage, std::string_view quire) final {
    if (!say_usage_) return std::string(kDone);
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    write_head(json, true);
    json.key("choices").begin_array().end_array();
    write_usage(json, usage);
    write_quire(json, quire);
    json.end_object();
    return event(out).append(kDone);
  }

  std::string failure(const ApiError& error) final { return event(openai_error_body(error)).append(kDone); }

 protected:
  virtual std::string_view id_prefix() const = 0;
  virtual std::string_view object(bool chunk) const = 0;
  // `offset` characters of the answer went before, where its log-probabilities are told.
  virtual void write_choice(JsonWriter& json, const AnswerPiece& piece, size_t offset, bool chunk) const = 0;
  virtual void write_beside_choices(JsonWriter& json, const AnswerPiece& piece, bool chunk) const = 0;

  const ReplyHead head_;
  const TokenNames names_;
  const bool token_ids_;

 private:
  void write_head(JsonWriter& json, bool chunk) const {
    json.key("id").value(std::string(id_prefix()) + head_.request_id);
    json.key("object").value(object(chunk));
    json.key("created").value(head_.created);
    json.key("model").value(head_.model);
    json.key("system_fingerprint").value(head_.fingerprint);
  }

  size_t characters(std::span<const TokenId> tokens) const {
    size_t sum = 0;
    for (const TokenId token : tokens) sum += names_.characters(token);
    return sum;
  }

  const bool say_usage_;
  const bool usage_in_all_;
  std::vector<size_t> offsets_;  // of a stream's answers
};

class CompletionReply final : public OpenAiReply {
 public:
  using OpenAiReply::OpenAiReply;

 private:
  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string_view object(bool) const override { return "text_completion"; }

  void write_choice(JsonWriter& json, const AnswerPiece& piece, size_t offset, bool chunk) const override {
    json.begin_object().key("index").value(piece.index);
    json.key("text").value(text_of(piece, Kind::kContent));
    json.key("logprobs");
    if (piece.logprobs) {
      const PromptLogprobs prompt{.tokens = piece.prompt,
                                  .logprobs = piece.prompt_logprobs.value_or(std::span<const PositionLogprobs>())};
      write_completion_logprobs(json, names_, piece.echo ? prompt : PromptLogprobs{}, *piece.logprobs, offset);
    } else {
      json.null();
    }
    write_ending(json, piece.finish_reason, piece.stop_reason);
    if (token_ids_) write_ids(json.key("token_ids"), piece.tokens);
    if (token_ids_ && piece.first) write_ids(json.key("prompt_token_ids"), piece.prompt);
    if (!chunk) write_prompt_logprobs(json, head_.tokenizer, piece);
    json.end_object();
  }

  void write_beside_choices(JsonWriter&, const AnswerPiece&, bool) const override {}
};

class ChatReply final : public OpenAiReply {
 public:
  ChatReply(ReplyHead head, const Plan& plan)
      : OpenAiReply(std::move(head), plan.options),
        named_tool_(plan.format && plan.format->tool_use.choice == ToolUse::Choice::kNamed) {}

 private:
  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view object(bool chunk) const override { return chunk ? "chat.completion.chunk" : "chat.completion"; }

  void write_choice(JsonWriter& json, const AnswerPiece& piece, size_t, bool chunk) const override {
    json.begin_object().key("index").value(piece.index);
    write_message(json, piece, chunk);
    json.key("logprobs");
    if (piece.logprobs) {
      write_chat_logprobs(json, names_, *piece.logprobs);
    } else {
      json.null();
    }
    write_ending(json, finish_reason(piece), piece.stop_reason);
    if (token_ids_) write_ids(json.key("token_ids"), piece.tokens);
    json.end_object();
  }

  void write_beside_choices(JsonWriter& json, const AnswerPiece& piece, bool chunk) const override {
    if (!chunk) write_prompt_logprobs(json, head_.tokenizer, piece);
    if (token_ids_ && piece.first) write_ids(json.key("prompt_token_ids"), piece.prompt);
  }

  // A named tool is no news: OpenAI says "stop" of it.
  std::string_view finish_reason(const AnswerPiece& piece) const {
    return piece.finish_reason == "stop" && piece.called && !named_tool_ ? "tool_calls" : piece.finish_reason;
  }

  void write_message(JsonWriter& json, const AnswerPiece& piece, bool chunk) const {
    json.key(chunk ? "delta" : "message").begin_object();
    if (piece.first) json.key("role").value("assistant");
    write_pieces(json, piece, chunk);
    if (!chunk) json.key("refusal").null();
    json.end_object();
  }

  // What is said, reasoned and called: in a stream what there is of it, in a body content in any case.
  void write_pieces(JsonWriter& json, const AnswerPiece& piece, bool chunk) const {
    const std::string content = text_of(piece, Kind::kContent), reasoning = text_of(piece, Kind::kReasoning);
    if (!reasoning.empty()) json.key("reasoning").value(reasoning).key("reasoning_content").value(reasoning);
    if (!content.empty() || piece.pieces.empty()) {
      json.key("content").value(content);
    } else if (!chunk) {
      json.key("content").null();
    }
    write_calls(json, piece, chunk);
  }

  void write_calls(JsonWriter& json, const AnswerPiece& piece, bool chunk) const {
    std::span<const OutputPiece> rest = piece.pieces;
    bool any = false;
    while (!rest.empty()) {
      const bool call = rest[0].kind == Kind::kCall || rest[0].kind == Kind::kArguments;
      if (call && !std::exchange(any, true)) json.key("tool_calls").begin_array();
      rest = rest.subspan(call ? write_call(json, piece.index, rest, chunk) : 1);
    }
    if (any) json.end_array();
  }

  // The call that begins at pieces[0], or, in a stream, goes on there; returns how many pieces it has.
  size_t write_call(JsonWriter& json, int answer, std::span<const OutputPiece> pieces, bool chunk) const {
    const OutputPiece& first = pieces.front();
    const bool begins = first.kind == Kind::kCall;
    size_t count = begins ? 1 : 0;
    std::string arguments;
    for (; count < pieces.size() && pieces[count].kind == Kind::kArguments; ++count) arguments += pieces[count].text;
    json.begin_object();
    if (chunk) json.key("index").value(first.call);
    if (begins) json.key("id").value(call_id(head_.call_key, answer, first.call)).key("type").value("function");
    json.key("function").begin_object();
    if (begins) json.key("name").value(first.text);
    json.key("arguments").value(arguments);
    json.end_object().end_object();
    return count;
  }

  const bool named_tool_;
};

}  // namespace

std::unique_ptr<Reply> completion_reply(ReplyHead head, const Plan& plan) {
  return std::make_unique<CompletionReply>(std::move(head), plan.options);
}

std::unique_ptr<Reply> chat_reply(ReplyHead head, const Plan& plan) {
  return std::make_unique<ChatReply>(std::move(head), plan);
}

}  // namespace quire::api
