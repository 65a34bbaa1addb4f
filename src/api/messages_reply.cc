#include "api/messages_reply.h"

#include <optional>
#include <utility>
#include <vector>

#include "api/json.h"
#include "api/json_writer.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;

// A block of the content: something said, reasoned or called.
struct Block {
  Kind kind;  // kContent, kReasoning or kCall
  std::string id = {};
  std::string name = {};
  std::string text = {};  // of a call: its arguments
};

// A block's input is an object in any case: arguments that are none, as those of a call that was cut, are left out.
std::string input_of(const std::string& arguments) {
  const auto parsed = JsonDocument::parse(arguments);
  return parsed && parsed->root().is_object() ? json_text(parsed->root()) : "{}";
}

void write_block(JsonWriter& json, const Block& block) {
  json.begin_object();
  switch (block.kind) {
    case Kind::kCall:
    case Kind::kArguments:
      json.key("type").value("tool_use").key("id").value(block.id).key("name").value(block.name);
      json.key("input").raw(input_of(block.text));
      break;
    case Kind::kReasoning:
      json.key("type").value("thinking").key("thinking").value(block.text).key("signature").value("");
      break;
    case Kind::kContent:
      json.key("type").value("text").key("text").value(block.text);
      break;
  }
  json.end_object();
}

// The kind of block that a piece belongs to.
Kind block_kind(const OutputPiece& piece) { return piece.kind == Kind::kArguments ? Kind::kCall : piece.kind; }

bool begins_block(const OutputPiece& piece, const std::optional<Kind>& open) {
  return piece.kind == Kind::kCall || open != block_kind(piece);
}

// What clients count: the cached part of the prompt stands beside the rest.
void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object().key("input_tokens").value(usage.prompt_tokens - usage.cached_tokens);
  json.key("cache_creation_input_tokens").value(0).key("cache_read_input_tokens").value(usage.cached_tokens);
  json.key("output_tokens").value(usage.completion_tokens);
  json.key("output_tokens_details").begin_object().key("thinking_tokens").value(usage.reasoning_tokens).end_object();
  json.end_object();
}

// How an answer ended.
struct Ending {
  std::string_view reason = {};  // empty: it has not
  std::string sequence = {};     // the stop sequence, if it was one
};

Ending ending_of(const AnswerPiece& piece) {
  if (piece.finish_reason.empty()) return {};
  if (piece.finish_reason == "length") return {.reason = "max_tokens"};
  if (const auto* text = std::get_if<std::string>(&piece.stop_reason))
    return {.reason = "stop_sequence", .sequence = *text};
  return {.reason = piece.called ? "tool_use" : "end_turn"};
}

void write_ending(JsonWriter& json, const Ending& ending) {
  json.key("stop_reason").value_or_null(ending.reason).key("stop_sequence").value_or_null(ending.sequence);
}

class MessagesReply final : public Reply {
 public:
  explicit MessagesReply(ReplyHead head) : head_(std::move(head)) {}

  std::string body(std::span<const AnswerPiece> answers, const Usage& usage) const override {
    const AnswerPiece& answer = answers.front();
    std::vector<Block> blocks;
    std::optional<Kind> open;
    for (const OutputPiece& piece : answer.pieces) {
      if (begins_block(piece, open)) blocks.push_back(new_block(piece));
      if (piece.kind != Kind::kCall) blocks.back().text += piece.text;
      open = block_kind(piece);
    }
    std::string out;
    JsonWriter json(out);
    write_message(json, blocks, ending_of(answer), usage, answer.quire);
    return out;
  }

  std::string begin(const Usage& usage) override {
    add("message_start", [&](JsonWriter& json) { write_message(json.key("message"), {}, {}, usage, {}); });
    return std::exchange(events_, {});
  }

  std::string piece(const AnswerPiece& piece, const Usage&) override {
    for (const OutputPiece& part : piece.pieces) add_piece(part);
    ending_ = ending_of(piece);
    return std::exchange(events_, {});
  }

  std::string end(const Usage& usage, std::string_view quire) override {
    close_block();
    add("message_delta", [&](JsonWriter& json) {
      write_ending(json.key("delta").begin_object(), ending_);
      json.end_object();
      write_usage(json, usage);
      if (!quire.empty()) json.key("quire").raw(quire);
    });
    add("message_stop", [](JsonWriter&) {});
    return std::exchange(events_, {});
  }

  std::string failure(const ApiError& error) override {
    append_event(events_, "error", anthropic_error_body(error));
    return std::exchange(events_, {});
  }

 private:
  template <class Write>
  void add(std::string_view type, const Write& write) {
    std::string data;
    JsonWriter json(data);
    json.begin_object().key("type").value(type);
    write(json);
    json.end_object();
    append_event(events_, type, data);
  }

  Block new_block(const OutputPiece& piece) const {
    if (piece.kind != Kind::kCall) return {.kind = block_kind(piece)};
    return {.kind = Kind::kCall, .id = call_id(head_.call_key, 0, piece.call), .name = piece.text};
  }

  void add_piece(const OutputPiece& piece) {
    if (begins_block(piece, open_)) {
      close_block();
      open_ = block_kind(piece);
      add("content_block_start", [&](JsonWriter& json) {
        json.key("index").value(index_);
        write_block(json.key("content_block"), new_block(piece));
      });
    }
    if (piece.kind == Kind::kCall) return;
    const bool call = piece.kind == Kind::kArguments, thought = piece.kind == Kind::kReasoning;
    add("content_block_delta", [&](JsonWriter& json) {
      json.key("index").value(index_).key("delta").begin_object().key("type");
      json.value(call ? "input_json_delta" : thought ? "thinking_delta" : "text_delta");
      json.key(call ? "partial_json" : thought ? "thinking" : "text").value(piece.text).end_object();
    });
  }

  void close_block() {
    if (!std::exchange(open_, std::nullopt)) return;
    add("content_block_stop", [&](JsonWriter& json) { json.key("index").value(index_++); });
  }

  void write_message(JsonWriter& json, const std::vector<Block>& blocks, const Ending& ending, const Usage& usage,
                     std::string_view quire) const {
    json.begin_object().key("id").value("msg_" + head_.request_id).key("type").value("message");
    json.key("role").value("assistant").key("model").value(head_.model);
    json.key("system_fingerprint").value(head_.fingerprint);
    json.key("content").begin_array();
    for (const Block& block : blocks) write_block(json, block);
    json.end_array();
    write_ending(json, ending);
    write_usage(json, usage);
    if (!quire.empty()) json.key("quire").raw(quire);
    json.end_object();
  }

  const ReplyHead head_;
  // Of a stream.
  std::string events_;
  std::optional<Kind> open_;  // block, the last of them
  int index_ = 0;             // of the open block, or of the next one
  Ending ending_;
};

}  // namespace

std::unique_ptr<Reply> messages_reply(ReplyHead head) { return std::make_unique<MessagesReply>(std::move(head)); }

}  // namespace quire::api
