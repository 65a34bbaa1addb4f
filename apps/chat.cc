#include "chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/json_writer.h"
#include "api/request.h"
#include "base/utf8.h"
#include "net/sse.h"
#include "server_access.h"

namespace quire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr size_t kMaxEvent = size_t{1} << 30;  // our own
// How soon an interruption is seen.
constexpr std::chrono::milliseconds kTick{20};
constexpr std::array<std::string_view, 13> kSettings = {
    "temperature", "top_p", "top_k",      "min_p",      "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed",        "stop",  "max_tokens", "min_tokens", "ignore_eos",       "reasoning_effort"};

// The answer to one question, as it comes.
class Answering final : public api::Exchange {
 public:
  Answering(TaskQueue& tasks, const Chat::Piece& piece) : tasks_(tasks), piece_(piece) {}

  void respond(api::HttpResponse response) override {
    if (response.status != 200) error_ = Error{ErrorKind::kInvalidRequest, message_of(response.body)};
    done_ = true;
  }
  void start(api::HttpResponse head) override { write(head.body); }
  void write(std::string_view bytes) override {
    if (left_) return;
    sse_.feed(bytes, [this](std::string_view data) { take(data); });
  }
  void finish() override { done_ = true; }
  void on_close(std::function<void()> callback) override { on_close_ = std::move(callback); }
  void post(std::function<void()> task) override { tasks_.post(std::move(task)); }
  void post(std::shared_ptr<api::Task> task) override {
    if (task->posted.exchange(true)) return;
    tasks_.post([task = std::move(task)] {
      task->posted = false;
      task->run();
    });
  }

  void leave() {
    left_ = true;
    if (on_close_) std::exchange(on_close_, nullptr)();
  }
  bool done() const { return done_; }
  const std::optional<Error>& error() const { return error_; }
  ChatAnswer take_answer() { return std::move(answer_); }

 private:
  static std::string message_of(std::string_view body) {
    const json parsed = json::parse(body, nullptr, false);
    return parsed.is_discarded() ? in_quotes(body) : error_text(parsed);
  }

  void take(std::string_view data) {
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) return;  // [DONE]
    if (event.contains("error")) {
      error_ = Error{ErrorKind::kInternal, error_text(event)};
      return;
    }
    ChatUsage& usage = answer_.usage;
    if (const auto found = event.find("usage"); found != event.end() && found->is_object()) {
      usage.prompt_tokens = found->value("prompt_tokens", int64_t{0});
      usage.completion_tokens = found->value("completion_tokens", int64_t{0});
      usage.cached_tokens = found->value(json::json_pointer("/prompt_tokens_details/cached_tokens"), int64_t{0});
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || choices->empty()) return;
    const json& choice = choices->front();
    const json delta = choice.value("delta", json::object());
    for (const auto& [name, reasoning] : {std::pair{"reasoning", true}, std::pair{"content", false}}) {
      const auto text = delta.find(name);
      if (text == delta.end() || !text->is_string()) continue;
      const auto& piece = text->get_ref<const std::string&>();
      if (!reasoning) answer_.content += piece;
      if (!piece.empty()) piece_(reasoning, piece);
    }
    if (const auto reason = choice.find("finish_reason"); reason != choice.end() && reason->is_string())
      answer_.finish_reason = reason->get<std::string>();
    if (usage.completion_tokens == 0) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - asked_).count();
    if (usage.first_tokens == 0) {
      usage.first_tokens = usage.completion_tokens;
      usage.first_seconds = seconds;
    }
    usage.rest_seconds = seconds - usage.first_seconds;
  }

  TaskQueue& tasks_;
  const Chat::Piece& piece_;  // not called once the client has left
  const Clock::time_point asked_ = Clock::now();
  net::SseParser sse_{kMaxEvent};
  ChatAnswer answer_;
  std::optional<Error> error_;
  std::function<void()> on_close_;
  bool done_ = false;
  bool left_ = false;
};

// What the API says of a value, as if a request had it.
Result<void> check(const std::string& name, const std::string& value) {
  std::string body;
  api::JsonWriter out(body);
  out.begin_object().key("messages").begin_array().begin_object();
  out.key("role").value("user").key("content").value("").end_object().end_array();
  out.key(name).raw(value).end_object();
  // How long the model is may not be known yet; it has its say when something is asked.
  const auto parsed = api::parse_chat(body, {.max_model_len = std::numeric_limits<int32_t>::max()});
  if (!parsed) return std::unexpected(parsed.error());
  return {};
}

}  // namespace

struct TaskQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
};

TaskQueue::TaskQueue() : state_(std::make_unique<State>()) {}
TaskQueue::~TaskQueue() = default;

void TaskQueue::post(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  state_->changed.notify_one();
}

void TaskQueue::run_while(const std::function<bool()>& condition) {
  while (condition()) {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, kTick, [this] { return !state_->tasks.empty(); })) continue;
    const auto task = std::move(state_->tasks.front());
    state_->tasks.pop_front();
    lock.unlock();
    task();
  }
}

Result<void> Chat::set(const std::string& name, const std::string& value) {
  if (std::ranges::find(kSettings, name) == kSettings.end())
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("{} is no parameter; there are {}", in_quotes(name), fmt::join(kSettings, ", ")), name);
  if (value.empty()) {
    settings_.erase(name);
    return {};
  }
  // What is no JSON is a string.
  std::string text;
  if (json::accept(value)) {
    text = value;
  } else {
    api::append_json_string(text, value);
  }
  if (auto checked = check(name, text); !checked) return checked;
  settings_[name] = std::move(text);
  return {};
}

std::string Chat::body() const {
  std::string text;
  api::JsonWriter out(text);
  out.begin_object().key("messages").begin_array();
  const auto write = [&](std::string_view role, const std::string& content) {
    out.begin_object().key("role").value(role).key("content").value(content).end_object();
  };
  if (!system_.empty()) write("system", system_);
  for (const Message& message : messages_) write(message.role, message.content);
  out.end_array().key("stream").value(true).key("stream_options").begin_object();
  out.key("include_usage").value(true).key("continuous_usage_stats").value(true).end_object();
  for (const auto& [name, value] : settings_) out.key(name).raw(value);
  out.end_object();
  return text;
}

Result<ChatAnswer> Chat::ask(std::string question, const Piece& piece, const std::atomic<bool>& interrupted) {
  messages_.push_back({"user", std::move(question)});
  const auto answering = std::make_shared<Answering>(tasks_, piece);
  handler_.handle({.method = "POST",
                   .path = "/v1/chat/completions",
                   .query = {},
                   .headers = {{"content-type", "application/json"}},
                   .client = "terminal",
                   .body = body()},
                  answering);
  tasks_.run_while([&] { return !answering->done() && !interrupted; });
  if (!answering->done()) answering->leave();
  if (answering->error()) {
    messages_.pop_back();
    return std::unexpected(*answering->error());
  }
  ChatAnswer answer = answering->take_answer();
  messages_.push_back({"assistant", answer.content});
  return answer;
}

}  // namespace quire::apps
