// Server and service together, with an engine that repeats the prompt, on threads of their own as in the program.
#include "api/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "api/test_model.h"
#include "net/server.h"
#include "net/test_client.h"

namespace quire::net {
namespace {

// One token a step for every running request, on its own thread.
class RepeatingEngine {
 public:
  RepeatingEngine() : thread_([this] { run(); }) {
    info_.vocab_size = 259;
    info_.max_model_len = 4096;
    info_.fingerprint = "test";
  }
  ~RepeatingEngine() {
    stopping_ = true;
    thread_.join();
  }

  api::Backend backend(const text::Tokenizer& tokenizer) {
    return {.submit_all = [this](std::vector<Request> requests,
                                 std::vector<Engine::Sink> sinks) { return submit(requests, sinks); },
            .cancel =
                [this](uint64_t id) {
                  const std::lock_guard lock(mutex_);
                  if (const auto found = running_.find(id); found != running_.end()) found->second.cancelled = true;
                },
            .stats = [this] { return EngineStats{.running = static_cast<int>(running())}; },
            .info = &info_,
            .tokenizer = &tokenizer};
  }
  size_t running() const {
    const std::lock_guard lock(mutex_);
    return running_.size();
  }

 private:
  struct Running {
    Request request;
    Engine::Sink sink;
    int made = 0;
    bool cancelled = false;
  };

  Result<std::vector<uint64_t>> submit(std::vector<Request>& requests, std::vector<Engine::Sink>& sinks) {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(++last_);
      running_.emplace(last_, Running{.request = std::move(requests[i]), .sink = std::move(sinks[i])});
    }
    return ids;
  }

  void run() {
    while (!stopping_) {
      std::this_thread::sleep_for(200us);
      const std::lock_guard lock(mutex_);
      for (auto at = running_.begin(); at != running_.end();)
        at = step(at->second) ? running_.erase(at) : std::next(at);
    }
    for (auto& [id, running] : running_) running.sink({.finish = FinishReason::kAborted});
  }

  static bool step(Running& running) {
    if (running.cancelled) {
      running.sink({.finish = FinishReason::kAborted});
      return true;
    }
    const auto& prompt = running.request.prompt;
    const TokenId token = prompt[static_cast<size_t>(running.made++) % prompt.size()];
    const bool last = running.made == running.request.sampling.max_tokens;
    running.sink({.tokens = {token}, .finish = last ? FinishReason::kLength : FinishReason::kNone});
    return last;
  }

  mutable std::mutex mutex_;
  std::map<uint64_t, Running> running_;
  uint64_t last_ = 0;
  ModelInfo info_{};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

class Program {
 public:
  Program() {
    auto made = Server::listen({.port = 0, .stop_on_signals = false});
    EXPECT_TRUE(made.has_value());
    server_ = std::move(*made);
    engine_.emplace();
    io_ = std::thread([this] { server_->run(service_.handler()); });
    service_.open(engine_->backend(tokenizer_));
  }
  ~Program() {
    server_->stop();
    io_.join();
    service_.close();
    engine_.reset();
  }
  uint16_t port() const { return server_->port(); }
  RepeatingEngine& engine() { return *engine_; }

 private:
  std::unique_ptr<Server> server_;
  text::Tokenizer tokenizer_ = api::byte_tokenizer();
  // One text thread: a thread sanitizer cannot see how two of them hand memory to each other inside the Rust library.
  api::Service service_{{.served_model_names = {"m"}, .text_threads = 1}};
  std::optional<RepeatingEngine> engine_;
  std::thread io_;
};

std::string post(const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = Clock::now() + 10s;
  while (Clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(ServiceOverSockets, AnswersManyClientsAtOnce) {
  Program program;
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      TestClient client(program.port());
      for (int i = 0; i < 10; ++i) {
        const std::string prompt = "client " + std::to_string(c) + " says " + std::to_string(i) + ".";
        client.forget();
        const bool stream = i % 2 == 1;
        client.send(
            post(R"({"max_tokens":40,"stop":".","prompt":")" + prompt + "\"" + (stream ? ",\"stream\":true}" : "}")));
        const std::string answer = client.read_until(stream ? "data: [DONE]\n\n\r\n0\r\n\r\n" : "\"usage\":");
        const bool whole =
            stream ? answer.find("\"stop_reason\":\".\"") != std::string::npos
                   : answer.find("\"text\":\"" + prompt.substr(0, prompt.size() - 1) + "\"") != std::string::npos;
        if (whole) ++right;
        if (!stream) client.read_until("}}}");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 80);
  EXPECT_TRUE(eventually([&] { return program.engine().running() == 0; }));
}

TEST(ServiceOverSockets, CancelsWhatClientsLeaveBehind) {
  Program program;
  for (const char* more : {R"(,"stream":true})", "}"}) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (int c = 0; c < 10; ++c) {
      clients.push_back(std::make_unique<TestClient>(program.port()));
      clients.back()->send(post(R"({"prompt":"abc","max_tokens":4000,"n":2)" + std::string(more)));
    }
    ASSERT_TRUE(eventually([&] { return program.engine().running() == 20; }));
    clients.clear();
    EXPECT_TRUE(eventually([&] { return program.engine().running() == 0; }));
  }
}

TEST(ServiceOverSockets, EndsWithRequestsStillRunning) {
  auto program = std::make_unique<Program>();
  TestClient client(program->port());
  client.send(post(R"({"prompt":"abc","max_tokens":300,"stream":true})"));
  ASSERT_TRUE(eventually([&] { return program->engine().running() == 1; }));
  program.reset();  // drains: the request is finished first
  EXPECT_NE(client.read_all().find("data: [DONE]"), std::string::npos);
}

}  // namespace
}  // namespace quire::net
