#include "api/responses_reply.h"

#include <fmt/format.h>

#include <utility>

#include "api/json_writer.h"

namespace quire::api {
namespace {

using Kind = OutputPiece::Kind;

// The events of a stream, numbered.
class Events {
 public:
  // `write` adds the members of an event.
  template <class Write>
  void add(std::string_view type, const Write& write) {
    std::string data;
    JsonWriter json(data);
    json.begin_object().key("type").value(type).key("sequence_number").value(next_++);
    write(json);
    json.end_object();
    append_event(out_, type, data);
  }
  std::string take() { return std::exchange(out_, {}); }

 private:
  int64_t next_ = 0;
  std::string out_;
};

// What is said, reasoned or called, in one piece.
struct Item {
  Kind kind;  // kContent, kReasoning or kCall
  std::string id;
  std::string call_id = {};
  std::string name = {};
  std::string text = {};  // of a call: its arguments
};

void write_part(JsonWriter& json, const Item& item) {
  const bool said = item.kind == Kind::kContent;
  json.begin_object().key("type").value(said ? "output_text" : "reasoning_text").key("text").value(item.text);
  if (said) json.key("annotations").begin_array().end_array().key("logprobs").begin_array().end_array();
  json.end_object();
}

void write_item(JsonWriter& json, const Item& item, std::string_view status) {
  json.begin_object().key("id").value(item.id);
  if (item.kind == Kind::kCall) {
    json.key("type").value("function_call").key("call_id").value(item.call_id).key("name").value(item.name);
    json.key("arguments").value(item.text);
  } else {
    json.key("type").value(item.kind == Kind::kContent ? "message" : "reasoning");
    if (item.kind == Kind::kContent) json.key("role").value("assistant");
    if (item.kind == Kind::kReasoning) json.key("summary").begin_array().end_array();
    json.key("content").begin_array();
    if (status != "in_progress") write_part(json, item);
    json.end_array();
  }
  json.key("status").value(status).end_object();
}

// The items of an answer, and the events that tell of them. The last one is open until another begins.
class Output {
 public:
  Output(const ReplyHead& head, Events& events) : head_(head), events_(events) {}

  void add(const OutputPiece& piece) {
    const Kind kind = piece.kind == Kind::kArguments ? Kind::kCall : piece.kind;
    if (piece.kind == Kind::kCall || !open_ || open_->kind != kind) begin(kind, piece);
    if (piece.kind != Kind::kCall) go_on(piece.text);
  }

  // There is one item at least. `whole`: the answer was not cut.
  void finish(bool whole) {
    if (!open_ && index_ == 0) begin(Kind::kContent, {});
    close(whole ? "completed" : "incomplete");
  }

  // JSON, with commas between them; without an open one.
  const std::string& items() const { return items_; }

 private:
  void begin(Kind kind, const OutputPiece& piece) {
    close("completed");
    const char* prefix = kind == Kind::kCall ? "fc" : kind == Kind::kContent ? "msg" : "rs";
    open_ = Item{.kind = kind, .id = fmt::format("{}_{}_{}", prefix, head_.request_id, index_)};
    if (kind == Kind::kCall) {
      open_->call_id = call_id(head_.call_key, 0, piece.call);
      open_->name = piece.text;
    }
    events_.add("response.output_item.added", [&](JsonWriter& json) {
      json.key("output_index").value(index_);
      write_item(json.key("item"), *open_, "in_progress");
    });
    if (kind == Kind::kCall) return;
    events_.add("response.content_part.added", [&](JsonWriter& json) {
      write_place(json);
      write_part(json.key("part"), *open_);
    });
  }

  void go_on(const std::string& text) {
    open_->text += text;
    const std::string type = std::string(text_event()) + ".delta";
    events_.add(type, [&](JsonWriter& json) {
      write_place(json);
      json.key("delta").value(text);
      if (open_->kind == Kind::kContent) json.key("logprobs").begin_array().end_array();
    });
  }

  void close(std::string_view status) {
    if (!open_) return;
    const bool call = open_->kind == Kind::kCall;
    events_.add(std::string(text_event()) + ".done", [&](JsonWriter& json) {
      write_place(json);
      if (call) json.key("name").value(open_->name);
      json.key(call ? "arguments" : "text").value(open_->text);
      if (open_->kind == Kind::kContent) json.key("logprobs").begin_array().end_array();
    });
    if (!call) {
      events_.add("response.content_part.done", [&](JsonWriter& json) {
        write_place(json);
        write_part(json.key("part"), *open_);
      });
    }
    std::string item;
    JsonWriter writer(item);
    write_item(writer, *open_, status);
    events_.add("response.output_item.done",
                [&](JsonWriter& json) { json.key("output_index").value(index_).key("item").raw(item); });
    if (!items_.empty()) items_ += ',';
    items_ += item;
    ++index_;
    open_.reset();
  }

  std::string_view text_event() const {
    return open_->kind == Kind::kContent     ? "response.output_text"
           : open_->kind == Kind::kReasoning ? "response.reasoning_text"
                                             : "response.function_call_arguments";
  }

  void write_place(JsonWriter& json) const {
    json.key("item_id").value(open_->id).key("output_index").value(index_);
    if (open_->kind != Kind::kCall) json.key("content_index").value(0);
  }

  const ReplyHead& head_;
  Events& events_;
  int index_ = 0;  // of the open item, or of the next one
  std::optional<Item> open_;
  std::string items_;
};

class ResponsesReply final : public Reply {
 public:
  ResponsesReply(ReplyHead head, std::string echo) : head_(std::move(head)), echo_(std::move(echo)) {}

  std::string body(std::span<const AnswerPiece> answers, const Usage& usage) const override {
    const AnswerPiece& answer = answers.front();
    const bool whole = answer.finish_reason != "length";
    Events events;  // nobody reads them
    Output output(head_, events);
    for (const OutputPiece& piece : answer.pieces) output.add(piece);
    output.finish(whole);
    std::string out;
    JsonWriter json(out);
    write_response(json, whole ? "completed" : "incomplete", output.items(), &usage, answer.quire);
    return out;
  }

  std::string begin(const Usage&) override {
    for (const char* type : {"response.created", "response.in_progress"}) {
      events_.add(type,
                  [&](JsonWriter& json) { write_response(json.key("response"), "in_progress", {}, nullptr, {}); });
    }
    return events_.take();
  }

  std::string piece(const AnswerPiece& piece, const Usage&) override {
    for (const OutputPiece& part : piece.pieces) output_.add(part);
    if (piece.finish_reason == "length") whole_ = false;
    return events_.take();
  }

  std::string end(const Usage& usage, std::string_view quire) override {
    output_.finish(whole_);
    const char* status = whole_ ? "completed" : "incomplete";
    events_.add(fmt::format("response.{}", status), [&](JsonWriter& json) {
      write_response(json.key("response"), status, output_.items(), &usage, quire);
    });
    return events_.take();
  }

  std::string failure(const ApiError& error) override {
    error_ = error.message;
    events_.add("response.failed", [&](JsonWriter& json) {
      write_response(json.key("response"), "failed", output_.items(), nullptr, {});
    });
    return events_.take();
  }

 private:
  void write_response(JsonWriter& json, std::string_view status, std::string_view items, const Usage* usage,
                      std::string_view quire) const {
    json.begin_object().key("id").value("resp_" + head_.request_id).key("object").value("response");
    json.key("created_at").value(head_.created).key("status").value(status).key("model").value(head_.model);
    json.key("system_fingerprint").value(head_.fingerprint);
    json.key("error");
    if (error_.empty()) {
      json.null();
    } else {
      json.begin_object().key("code").value("server_error").key("message").value(error_).end_object();
    }
    json.key("incomplete_details");
    if (status == "incomplete") {
      json.begin_object().key("reason").value("max_output_tokens").end_object();
    } else {
      json.null();
    }
    json.key("output").begin_array();
    if (!items.empty()) json.raw(items);
    json.end_array().raw(echo_).key("usage");
    if (usage != nullptr) {
      write_usage(json, *usage);
    } else {
      json.null();
    }
    if (!quire.empty()) json.key("quire").raw(quire);
    json.end_object();
  }

  static void write_usage(JsonWriter& json, const Usage& usage) {
    json.begin_object().key("input_tokens").value(usage.prompt_tokens);
    json.key("input_tokens_details").begin_object().key("cached_tokens").value(usage.cached_tokens);
    json.key("cache_write_tokens").value(0).end_object();  // nobody pays for them
    json.key("output_tokens").value(usage.completion_tokens);
    json.key("output_tokens_details").begin_object().key("reasoning_tokens").value(usage.reasoning_tokens).end_object();
    json.key("total_tokens").value(usage.prompt_tokens + usage.completion_tokens).end_object();
  }

  const ReplyHead head_;
  const std::string echo_;
  // Of a stream.
  Events events_;
  Output output_{head_, events_};
  bool whole_ = true;
  std::string error_;
};

}  // namespace

std::unique_ptr<Reply> responses_reply(ReplyHead head, std::string echo) {
  return std::make_unique<ResponsesReply>(std::move(head), std::move(echo));
}

}  // namespace quire::api
