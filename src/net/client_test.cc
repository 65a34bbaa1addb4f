// The client against servers that answer what a test says, byte by byte, and against our own.
#include "net/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/server.h"

namespace quire::net {
namespace {

using namespace std::chrono_literals;

// Takes one connection, reads a request's head, sends the pieces one by one, then closes, or says no more until the
// test ends.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::string> pieces, bool closes = true)
      : pieces_(std::move(pieces)), closes_(closes), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~ScriptedServer() {
    thread_.request_stop();
    thread_.join();
    ::close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  Url url() const { return {.host = "127.0.0.1", .port = port_}; }
  // Only once the exchange is over.
  const std::string& request() const { return request_; }

 private:
  void run(const std::stop_token& stop) {
    pollfd waiting{.fd = listener_, .events = POLLIN, .revents = 0};
    while (::poll(&waiting, 1, 10) <= 0)
      if (stop.stop_requested()) return;
    const int fd = ::accept(listener_, nullptr, nullptr);
    char data[65536];
    while (request_.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, data, sizeof(data), 0);
      if (n <= 0) break;
      request_.append(data, static_cast<size_t>(n));
    }
    for (const std::string& piece : pieces_) {
      if (::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
      std::this_thread::sleep_for(1ms);
    }
    while (!closes_ && !stop.stop_requested()) std::this_thread::sleep_for(1ms);
    ::close(fd);
  }

  std::vector<std::string> pieces_;
  bool closes_;
  int listener_;
  uint16_t port_ = 0;
  std::string request_;
  std::jthread thread_;
};

struct Outcome {
  Result<api::HttpResponse> answer;
  std::vector<std::string> events;
};

Outcome ask(const ScriptedServer& server, ClientOptions options = {}) {
  Outcome outcome;
  auto client = Client::to(server.url(), options);
  EXPECT_TRUE(client.has_value());
  outcome.answer = (*client)->fetch({.method = "POST",
                                     .target = "/v1/completions",
                                     .headers = {{"Authorization", "Bearer k"}},
                                     .body = "{}",
                                     .on_event = [&](std::string_view data) { outcome.events.emplace_back(data); },
                                     .done = {}});
  return outcome;
}

// The message of what went wrong.
std::string failure_of(std::vector<std::string> pieces, bool closes = true, ClientOptions options = {}) {
  const ScriptedServer server(std::move(pieces), closes);
  const Outcome outcome = ask(server, options);
  EXPECT_FALSE(outcome.answer.has_value());
  return outcome.answer ? "" : outcome.answer.error().message;
}

void expect_part(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

std::vector<std::string> bytes_of(std::string_view text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

std::string chunk(std::string_view text) {
  char size[16];
  std::snprintf(size, sizeof(size), "%zx\r\n", text.size());
  return size + std::string(text) + "\r\n";
}

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(Client, AnAnswerWithALengthComesWhole) {
  const ScriptedServer server(
      {"HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nX-Odd: A b\r\nContent-Length: 5\r\n\r\nhe", "llo"});
  const Outcome outcome = ask(server);
  ASSERT_TRUE(outcome.answer.has_value()) << outcome.answer.error().message;
  EXPECT_EQ(outcome.answer->status, 201);
  EXPECT_EQ(outcome.answer->content_type, "text/plain");
  EXPECT_EQ(outcome.answer->body, "hello");
  EXPECT_EQ(outcome.answer->headers[1], (std::pair<std::string, std::string>("x-odd", "A b")));
  for (const char* part : {"POST /v1/completions HTTP/1.1\r\n", "Host: 127.0.0.1:", "Authorization: Bearer k\r\n",
                           "Content-Type: application/json\r\n", "Content-Length: 2\r\n"})
    expect_part(server.request(), part);
}

TEST(Client, EventsComeThroughChunksCutAnywhere) {
  const std::string stream = std::string(kStreamHead) + chunk("data: {\"a\"") + chunk(":1}\n") +
                             chunk("\ndata: b\n\nda") + chunk("ta: [DONE]\n\n") + "0\r\n\r\n";
  for (const auto& pieces : {std::vector<std::string>{stream}, bytes_of(stream)}) {
    const ScriptedServer server(pieces);
    const Outcome outcome = ask(server);
    ASSERT_TRUE(outcome.answer.has_value()) << outcome.answer.error().message;
    EXPECT_EQ(outcome.events, (std::vector<std::string>{"{\"a\":1}", "b", "[DONE]"}));
    EXPECT_EQ(outcome.answer->body, "");
  }
}

TEST(Client, AStreamThatTheConnectionEndsIsWhole) {
  const ScriptedServer server({"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\n\n", "data: b\n\n"});
  const Outcome outcome = ask(server);
  ASSERT_TRUE(outcome.answer.has_value()) << outcome.answer.error().message;
  EXPECT_EQ(outcome.events, (std::vector<std::string>{"a", "b"}));
}

TEST(Client, ARefusalIsAnAnswerWithItsBody) {
  const ScriptedServer server(
      {"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Type: application/json\r\nContent-Length: "
       "2\r\n\r\n{}"});
  const Outcome outcome = ask(server);
  ASSERT_TRUE(outcome.answer.has_value()) << outcome.answer.error().message;
  EXPECT_EQ(outcome.answer->status, 429);
  EXPECT_EQ(outcome.answer->body, "{}");
  EXPECT_TRUE(outcome.events.empty());
}

TEST(Client, AServerThatClosesIsToldFromOneThatAnswers) {
  expect_part(failure_of({}), "without an answer");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\nContent-"}), "in the middle");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"}), "in the middle");
  expect_part(failure_of({std::string(kStreamHead), chunk("data: a\n\n")}), "in the middle");
}

TEST(Client, AServerThatStallsIsCutOff) {
  const ClientOptions options{.stall_timeout = 30ms};
  expect_part(failure_of({}, false, options), "nothing for too long");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\n"}, false, options), "nothing for too long");
  expect_part(failure_of({std::string(kStreamHead), chunk("data: a\n\n")}, false, options), "nothing for too long");
}

TEST(Client, GarbageIsNoAnswer) {
  expect_part(failure_of({"220 mail.example.org ESMTP\r\n\r\n"}), "not HTTP/1.1");
  expect_part(failure_of({std::string(1000, '\0')}), "not HTTP/1.1");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"}), "not HTTP/1.1");
  expect_part(failure_of({std::string(kStreamHead), "xyz\r\n"}), "not HTTP/1.1");
}

TEST(Client, WhatAServerSendsIsBounded) {
  const ClientOptions options{.max_header_bytes = 4096, .max_body_bytes = 1000, .max_event_bytes = 100};
  expect_part(failure_of({"HTTP/1.1 200 OK\r\nX: " + std::string(10'000, 'a')}, false, options), "header is too long");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999\r\n\r\n"}, false, options), "too long");
  expect_part(failure_of({"HTTP/1.1 200 OK\r\n\r\n" + std::string(2000, 'a')}, false, options), "too long");
  expect_part(failure_of({std::string(kStreamHead), chunk("data: " + std::string(200, 'a'))}, false, options),
              "event of its answer is too long");
  expect_part(failure_of({std::string(kStreamHead), chunk(std::string(2000, '\n'))}, false, options), "too long");
}

TEST(Client, NoServerIsToldByItsAddress) {
  uint16_t port = 0;
  {
    const ScriptedServer gone({});
    port = gone.url().port;
  }
  auto client = Client::to({.host = "127.0.0.1", .port = port});
  ASSERT_TRUE(client.has_value());
  const auto answer = (*client)->fetch({.target = "/health", .done = {}});
  ASSERT_FALSE(answer.has_value());
  expect_part(answer.error().message, "no connection to 127.0.0.1:" + std::to_string(port));
}

TEST(Client, ManyExchangesAndTimersRunTogether) {
  auto server = Server::listen({.port = 0});
  ASSERT_TRUE(server.has_value());
  std::atomic<int> open = 0;
  std::vector<std::shared_ptr<api::Exchange>> held;  // the io thread's
  const api::Handler handler{
      .admit = [](const api::HttpRequest&) { return std::optional<api::HttpResponse>(); },
      .handle =
          [&](const api::HttpRequest& request, const std::shared_ptr<api::Exchange>& exchange) {
            exchange->start({.content_type = "text/event-stream", .body = "data: " + request.body + "\n\n"});
            held.push_back(exchange);
            // Nobody's answer ends before all have begun.
            if (++open == 20)
              for (const auto& one : std::exchange(held, {})) one->finish();
          }};
  std::jthread io([&] { (*server)->run(handler); });
  auto client = Client::to(*Url::parse((*server)->url()));
  ASSERT_TRUE(client.has_value());
  std::vector<std::string> events(20);
  int done = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto time = std::chrono::steady_clock::now() + i * 1ms;
    (*client)->at(time, [&, i, time] {
      EXPECT_GE(std::chrono::steady_clock::now(), time);
      (*client)->send(
          {.method = "POST",
           .target = "/x",
           .body = std::to_string(i),
           .on_event = [&, i](std::string_view data) { events[i] = data; },
           .done = [&](const Result<api::HttpResponse>& answer) { done += answer && answer->status == 200; }});
    });
  }
  (*client)->run();
  EXPECT_EQ(done, 20);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i], std::to_string(i));
  (*server)->stop();
}

TEST(Client, UrlsAreTakenApart) {
  const auto parts = [](std::string_view text) {
    const auto url = Url::parse(text);
    return url ? url->host + " " + std::to_string(url->port) + " " + url->path : "error: " + url.error().message;
  };
  EXPECT_EQ(parts("http://127.0.0.1:8000"), "127.0.0.1 8000 ");
  EXPECT_EQ(parts("http://localhost/"), "localhost 80 ");
  EXPECT_EQ(parts("http://a.example:81/base/v1/"), "a.example 81 /base/v1");
  EXPECT_EQ(parts("http://[::1]:9000/x"), "::1 9000 /x");
  EXPECT_EQ(parts("http://[::1]"), "::1 80 ");
  expect_part(parts("https://a.example"), "HTTPS");
  for (const char* wrong : {"", "a.example", "http://", "http://:80", "http:///x", "http://a:0", "http://a:65536",
                            "http://a:x", "http://a:", "http://[::1", "http://[::1]x", "http://::1:80", "http://a b",
                            "http://a\r\n", "http://u@a", "http://a/?q", "ftp://a"})
    expect_part(parts(wrong), "error: ");
}

}  // namespace
}  // namespace quire::net
