// A model for tests: a tokenizer in which every byte is a token of its own, a small chat template, and an engine that
// does what the test tells it. For tests alone.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/backend.h"
#include "api/json_writer.h"
#include "base/check.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quire::api {

inline constexpr TokenId kEndToken = 257;    // "<|end|>", the model's own
inline constexpr TokenId kOtherStop = 258;   // "<|stop|>", special too
inline constexpr int64_t kTestLength = 256;  // the model's length in tokens
inline constexpr int64_t kTestVocab = 259;

// Token b is byte b. Special tokens follow: the usual three, then `more`.
inline text::Tokenizer byte_tokenizer(const std::vector<std::string>& more = {},
                                      std::string_view post_processor = "null") {
  std::string file;
  JsonWriter json(file);
  constexpr std::string_view kByteLevel =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  json.begin_object().key("version").value("1.0").key("truncation").null().key("padding").null();
  json.key("normalizer").null().key("post_processor").raw(post_processor);
  json.key("pre_tokenizer").raw(kByteLevel).key("decoder").raw(kByteLevel);
  json.key("added_tokens").begin_array();
  TokenId id = 256;
  std::vector<std::string> special = {"<s>", "<|end|>", "<|stop|>"};
  special.insert(special.end(), more.begin(), more.end());
  for (const std::string& name : special) {
    json.begin_object().key("id").value(id++).key("content").value(name).key("special").value(true);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) json.key(flag).value(false);
    json.end_object();
  }
  json.end_array().key("model").begin_object().key("type").value("BPE").key("merges").begin_array().end_array();
  json.key("vocab").begin_object();
  int next = 256;  // bytes that do not print are spelt by characters from U+0100 on
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int code = prints ? byte : next++;
    if (code < 0x80) {
      json.key(std::string(1, static_cast<char>(code)));
    } else {
      json.key(std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))});
    }
    json.value(byte);
  }
  json.end_object().end_object().end_object();
  auto tokenizer = text::Tokenizer::from_json(file);
  QUIRE_CHECK(tokenizer.has_value());
  return std::move(*tokenizer);
}

inline text::ChatTemplate small_template() {
  auto made = text::ChatTemplate::compile(
      {.text = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last %}|{% endif %}{% endfor %}"
               "{% if tools %}T{{ tools | length }}{% endif %}{% if mood %}({{ mood }}){% endif %}"
               "{% if add_generation_prompt %}|[assistant]{% endif %}"});
  QUIRE_CHECK(made.has_value());
  return std::move(*made);
}

inline std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Keeps what it is asked; the test sends the updates, from its own thread, which stands for the engine's.
class FakeEngine {
 public:
  struct Asked {
    Request request;
    Engine::Sink sink;
  };

  Backend backend(const text::Tokenizer* tokenizer, const text::ChatTemplate* chat_template) {
    info_.vocab_size = kTestVocab;
    info_.max_model_len = kTestLength;
    info_.hidden_size = 4;
    info_.end_tokens = {kEndToken};
    info_.fingerprint = "weights";
    return {
        .submit_all = [this](std::vector<Request> requests,
                             std::vector<Engine::Sink> sinks) { return submit(std::move(requests), std::move(sinks)); },
        .cancel =
            [this](uint64_t id) {
              const std::lock_guard lock(mutex_);
              cancelled_.push_back(id);
            },
        .stats = [] { return EngineStats{.running = 3, .generation_tokens = 11}; },
        .info = &info_,
        .tokenizer = tokenizer,
        .chat_template = chat_template};
  }

  void fail_next(Error error) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(error);
  }
  // Requests so far; an id is an index here.
  size_t asked() const {
    const std::lock_guard lock(mutex_);
    return asked_.size();
  }
  Request request(size_t id) const {
    const std::lock_guard lock(mutex_);
    return asked_.at(id).request;
  }
  void send(size_t id, Update update) {
    Engine::Sink sink;
    {
      const std::lock_guard lock(mutex_);
      sink = asked_.at(id).sink;
    }
    sink(std::move(update));
  }
  void send_text(size_t id, std::string_view text, FinishReason finish = FinishReason::kNone) {
    send(id, {.tokens = bytes_of(text), .finish = finish});
  }
  std::vector<uint64_t> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

 private:
  Result<std::vector<uint64_t>> submit(std::vector<Request> requests, std::vector<Engine::Sink> sinks) {
    const std::lock_guard lock(mutex_);
    if (failure_) return std::unexpected(*std::exchange(failure_, std::nullopt));
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(asked_.size());
      asked_.push_back({std::move(requests[i]), std::move(sinks[i])});
    }
    return ids;
  }

  mutable std::mutex mutex_;
  ModelInfo info_{};
  std::vector<Asked> asked_;
  std::vector<uint64_t> cancelled_;
  std::optional<Error> failure_;
};

}  // namespace quire::api
