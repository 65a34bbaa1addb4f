// The service without a network: the test is the io thread, and sends the engine's updates. For tests alone.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/service.h"
#include "api/test_model.h"
#include "text/grammar.h"

namespace quire::api {

using nlohmann::json;

// Keeps what the service answers. Its tasks run when the test runs them.
class FakeExchange final : public Exchange {
 public:
  void respond(HttpResponse response) override {
    if (closed) return;
    answer = std::move(response);
    done = true;
  }
  void start(HttpResponse head) override {
    answer = std::move(head);
    streaming = true;
  }
  void write(std::string_view piece) override { stream += piece; }
  void finish() override { done = true; }
  void on_close(std::function<void()> callback) override { close_ = std::move(callback); }
  void post(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  void post(std::shared_ptr<Task> task) override {
    if (task->posted.exchange(true)) return;
    post([task = std::move(task)] {
      task->posted = false;
      task->run();
    });
  }

  // Runs tasks until `condition` holds; false if it does not within seconds.
  bool run_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      std::unique_lock lock(mutex_);
      const bool any =
          changed_.wait_until(lock, std::min(end, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)),
                              [this] { return !tasks_.empty(); });
      if (!any && std::chrono::steady_clock::now() >= end) return false;
      if (!any) continue;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    return true;
  }
  void run_ready() {
    for (;;) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  void leave() {
    closed = true;
    if (close_) close_();
  }
  // Tasks that nobody will run may hold what holds this exchange; a network's end forgets them too.
  void forget() {
    const std::lock_guard lock(mutex_);
    tasks_.clear();
  }

  HttpResponse answer;
  std::string stream;
  bool streaming = false;
  bool done = false;
  bool closed = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::function<void()> close_;
};

inline std::string header(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return {};
}

// The data of a stream's events, but for [DONE], which must be the last.
inline std::vector<json> events(const std::string& stream) {
  std::vector<json> all;
  size_t at = 0;
  bool done = false;
  while (at < stream.size()) {
    EXPECT_FALSE(done) << "something after [DONE]";
    EXPECT_EQ(stream.compare(at, 6, "data: "), 0);
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string data = stream.substr(at + 6, end - at - 6);
    done = data == "[DONE]";
    if (!done) all.push_back(json::parse(data));
    at = end + 2;
  }
  EXPECT_TRUE(done);
  return all;
}

// The data of a stream whose events have names, each of which is also the data's "type".
inline std::vector<json> named_events(std::string_view stream) {
  std::vector<json> all;
  while (!stream.empty()) {
    const size_t line = stream.find('\n'), end = stream.find("\n\n");
    if (!stream.starts_with("event: ") || end == std::string_view::npos ||
        !stream.substr(line + 1).starts_with("data: ")) {
      ADD_FAILURE() << "no event: " << stream;
      return all;
    }
    all.push_back(json::parse(stream.substr(line + 7, end - line - 7)));
    EXPECT_EQ(all.back()["type"], stream.substr(7, line - 7));
    stream.remove_prefix(end + 2);
  }
  return all;
}

class ServiceTest : public testing::Test {
 protected:
  ServiceTest()
      : ServiceTest(ServiceOptions{.served_model_names = {"m", "alias"}, .random = [] { return uint64_t{42}; }}) {}
  explicit ServiceTest(ServiceOptions options)
      : tokenizer_(byte_tokenizer()),
        template_(small_template()),
        grammars_(tokenizer_, {kEndToken}, kTestVocab),
        service_(std::move(options)) {}
  ~ServiceTest() override {
    service_.close();
    for (const auto& exchange : exchanges_) exchange->forget();
  }

  std::shared_ptr<FakeExchange> new_exchange() { return exchanges_.emplace_back(std::make_shared<FakeExchange>()); }

  void open(OutputFormats formats = {}) {
    Backend backend = engine_.backend(&tokenizer_, &template_);
    backend.grammars = &grammars_;
    backend.formats = formats;
    service_.open(std::move(backend));
  }
  void open_without_text() { service_.open(engine_.backend(nullptr, nullptr)); }

  static HttpRequest request_of(std::string method, std::string path, std::string body = {}, Headers headers = {}) {
    if (method == "POST") headers.emplace_back("content-type", "application/json");
    return {.method = std::move(method),
            .path = std::move(path),
            .query = {},
            .headers = std::move(headers),
            .client = "test",
            .body = std::move(body)};
  }
  // What admit() refuses, or the answer that comes without the engine.
  HttpResponse ask(HttpRequest request) {
    const Handler handler = service_.handler();
    if (auto refusal = handler.admit(request)) return *refusal;
    const auto exchange = new_exchange();
    handler.handle(std::move(request), exchange);
    EXPECT_TRUE(exchange->run_until([&] { return exchange->done; }));
    return exchange->answer;
  }
  HttpResponse get(std::string path) { return ask(request_of("GET", std::move(path))); }
  HttpResponse post(std::string path, const std::string& body) {
    return ask(request_of("POST", std::move(path), body));
  }
  // Sends a request and waits until the engine has `answers` more.
  std::shared_ptr<FakeExchange> submit(std::string path, const std::string& body, size_t answers = 1) {
    const size_t before = engine_.asked();
    const auto exchange = new_exchange();
    HttpRequest request = request_of("POST", std::move(path), body);
    const Handler handler = service_.handler();
    EXPECT_FALSE(handler.admit(request).has_value());
    handler.handle(std::move(request), exchange);
    EXPECT_TRUE(exchange->run_until([&] { return engine_.asked() == before + answers || exchange->done; }));
    EXPECT_FALSE(exchange->done) << exchange->answer.body;
    return exchange;
  }
  static json finish(FakeExchange& exchange) {
    EXPECT_TRUE(exchange.run_until([&] { return exchange.done; }));
    EXPECT_EQ(exchange.answer.status, 200) << exchange.answer.body;
    return json::parse(exchange.answer.body);
  }
  // The whole reply, where the engine answers with this text.
  json answered(std::string path, const std::string& body, std::string_view text, FinishReason reason) {
    const size_t id = engine_.asked();
    const auto exchange = submit(std::move(path), body);
    engine_.send_text(id, text, reason);
    return finish(*exchange);
  }
  // Has the engine answer with this text, cut at `cuts`, and hands on each part before the next comes.
  void answer_in_parts(FakeExchange& exchange, size_t id, std::string_view text, const std::vector<size_t>& cuts,
                       FinishReason reason) {
    size_t from = 0;
    for (const size_t cut : cuts) {
      engine_.send_text(id, text.substr(from, cut - from));
      exchange.run_ready();
      from = cut;
    }
    engine_.send_text(id, text.substr(from), reason);
    EXPECT_TRUE(exchange.run_until([&] { return exchange.done; }));
  }
  static std::vector<json> finish_stream(FakeExchange& exchange) {
    EXPECT_TRUE(exchange.run_until([&] { return exchange.done; }));
    return events(exchange.stream);
  }
  std::string metric(const std::string& name) {
    const std::string text = get("/metrics").body;
    const size_t at = text.find("\n" + name);
    if (at == std::string::npos) return "absent";
    const size_t end = text.find('\n', at + 1);
    return text.substr(text.rfind(' ', end) + 1, end - text.rfind(' ', end) - 1);
  }

  text::Tokenizer tokenizer_;
  std::optional<text::Tokenizer> other_tokenizer_;  // of models unlike it, which the grammars' thread still reads
  text::ChatTemplate template_;
  text::GrammarCompiler grammars_;
  FakeEngine engine_;
  Service service_;
  std::vector<std::shared_ptr<FakeExchange>> exchanges_;
};

// Some places in a text of this size, in order.
inline std::vector<size_t> random_cuts(std::mt19937& random, size_t size) {
  std::vector<size_t> cuts;
  for (size_t at = 1; at < size; ++at)
    if (random() % 4 == 0) cuts.push_back(at);
  return cuts;
}

inline PositionLogprobs position(TokenId token, float logprob, std::vector<TokenLogprob> top, int rank = 1) {
  return {.token = {.token = token, .logprob = logprob, .rank = rank}, .top = std::move(top)};
}

}  // namespace quire::api
