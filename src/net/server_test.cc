// The server over real sockets on the loopback, with handlers made for each test.
#include "net/server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/test_client.h"

namespace quire::net {
namespace {

// A running server. `/echo` answers the body, `/stream` keeps its exchange open for the test.
class Running {
 public:
  explicit Running(ServerOptions options = {}) {
    options.port = 0;
    auto made = Server::listen(std::move(options));
    EXPECT_TRUE(made.has_value()) << made.error().message;
    server_ = std::move(*made);
    thread_ = std::thread([this] { server_->run(handler()); });
  }
  ~Running() { join(); }

  uint16_t port() const { return server_->port(); }
  Server& server() { return *server_; }
  void join() {
    server_->stop();
    if (thread_.joinable()) thread_.join();
  }
  // Runs f with the exchange that was opened last, on the io thread.
  void with_stream(std::function<void(api::Exchange&)> f) {
    const std::lock_guard lock(mutex_);
    ASSERT_TRUE(stream_);
    stream_->post([stream = stream_, f = std::move(f)] { f(*stream); });
  }
  static bool eventually(const std::function<bool()>& condition, Clock::duration time = 5s) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  std::atomic<int> handled = 0;
  std::atomic<int> opened = 0;
  std::atomic<int> left = 0;

 private:
  api::Handler handler() {
    return {.admit = [](const api::HttpRequest& head) -> std::optional<api::HttpResponse> {
              if (head.header("authorization") == "bad") return api::HttpResponse{.status = 401, .body = "no"};
              return std::nullopt;
            },
            .handle =
                [this](api::HttpRequest request, std::shared_ptr<api::Exchange> exchange) {
                  ++handled;
                  if (request.path == "/throw") throw std::runtime_error("on purpose");
                  if (!request.path.starts_with("/stream")) {
                    exchange->respond({.headers = {{"X-Path", request.path}, {"X-Query", request.query}},
                                       .content_type = "text/plain",
                                       .body = request.body});
                    return;
                  }
                  exchange->on_close([this] { ++left; });
                  if (request.path == "/stream") exchange->start({.content_type = "text/event-stream"});
                  const std::lock_guard lock(mutex_);
                  stream_ = std::move(exchange);
                  ++opened;
                }};
  }

  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::shared_ptr<api::Exchange> stream_;
};

std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

TEST(Server, KeepsTheConnectionForTheNextRequest) {
  Running running;
  TestClient client(running.port());
  for (int i = 0; i < 3; ++i) {
    client.forget();
    client.send(post("/echo?a=b", "hello"));
    const std::string answer = client.read_until("hello");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("X-Path: /echo\r\n"), std::string::npos);
    EXPECT_NE(answer.find("X-Query: a=b\r\n"), std::string::npos);
    EXPECT_NE(answer.find("Connection: keep-alive\r\n"), std::string::npos);
  }
  EXPECT_EQ(running.handled, 3);
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  Running running;
  TestClient client(running.port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += post("/echo", "body-" + std::to_string(i) + ";");
  client.send(all);
  const std::string answer = client.read_until("body-19;");
  size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    const size_t next = answer.find("body-" + std::to_string(i) + ";");
    ASSERT_NE(next, std::string::npos);
    EXPECT_GT(next, at);
    at = next;
  }
}

TEST(Server, AnswersWhatIsPipelinedBehindAStream) {
  Running running;
  TestClient client(running.port());
  client.send(post("/stream", "") + post("/echo", "second"));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  running.with_stream([](api::Exchange& exchange) { exchange.write("one"); });
  EXPECT_NE(client.read_until("3\r\none\r\n").find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_EQ(running.handled, 1);
  running.with_stream([](api::Exchange& exchange) {
    exchange.write("two");
    exchange.finish();
  });
  const std::string answer = client.read_until("second");
  EXPECT_LT(answer.find("3\r\ntwo\r\n0\r\n\r\n"), answer.find("second"));
}

TEST(Server, ReadsChunkedBodies) {
  Running running;
  TestClient client(running.port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n");
  std::this_thread::sleep_for(20ms);
  client.send("3;ext=1\r\nefg\r\n0\r\n\r\n");
  EXPECT_NE(client.read_until("abcdefg").find("Content-Length: 7\r\n"), std::string::npos);
}

TEST(Server, SaysContinueToAClientThatAsks) {
  Running running;
  TestClient client(running.port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  EXPECT_TRUE(client.read_until("abc").ends_with("abc"));
}

TEST(Server, MeetsNoExpectationButContinue) {
  Running running;
  for (const char* header :
       {"Expect: 200-ok", "Expect: 100-continue, x", "Expect: ", "Expect: 100-continue\r\nExpect: x"}) {
    TestClient client(running.port());
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n" + std::string(header) + "\r\n\r\nabc");
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 417 ")) << header;
  }
  EXPECT_EQ(running.handled, 0);
  // Refused by its head, a request is not told to go on.
  TestClient refused(running.port());
  refused.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nAuthorization: bad\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_TRUE(refused.read_until("no").starts_with("HTTP/1.1 401 "));
  // Names are case-blind, and HTTP/1.0 has no expectations.
  TestClient upper(running.port());
  upper.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(upper.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  TestClient old(running.port());
  old.send("POST /echo HTTP/1.0\r\nExpect: anything\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_TRUE(old.read_until("abc").starts_with("HTTP/1.1 200 "));
}

TEST(Server, StreamsToHttp10UntilTheEndOfTheConnection) {
  Running running;
  TestClient client(running.port());
  client.send("POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  running.with_stream([](api::Exchange& exchange) {
    exchange.write("plain");
    exchange.finish();
  });
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.ends_with("\r\n\r\nplain")) << answer;
  EXPECT_EQ(answer.find("chunked"), std::string::npos);
  EXPECT_TRUE(client.ended());
}

TEST(Server, SendsNoBodyToHead) {
  Running running;
  TestClient client(running.port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.read_all().ends_with("\r\n\r\n"));
}

struct BadRequest {
  const char* what;
  std::string bytes;
  int status;
};

TEST(Server, RefusesMalformedRequests) {
  const std::vector<BadRequest> bad = {
      {"no HTTP", "hello world\r\n\r\n", 400},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n", 400},
      {"NUL in a header", std::string("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 29), 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"no path", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a version of the future", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400},
      {"length is no number", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ten\r\n\r\n", 400},
      {"length is negative", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
      {"length does not fit", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400},
      {"length and chunked",
       "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"another encoding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
      {"chunk size is no number", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"chunk size overflows", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
       400},
      {"header too large", "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n", 431},
      {"declared body too large", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n", 413},
      {"chunked body too large",
       "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" + std::string(0x200000, 'x'), 413},
  };
  Running running({.max_body_bytes = 1 << 20});
  for (const BadRequest& request : bad) {
    TestClient client(running.port());
    client.send(request.bytes);
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(request.status) + " "))
        << request.what << ": " << answer;
    EXPECT_NE(answer.find("{\"error\":{\"message\":"), std::string::npos) << request.what;
    EXPECT_TRUE(client.ended()) << request.what;
  }
  EXPECT_EQ(running.handled, 0);
  TestClient client(running.port());
  client.send(post("/echo", "still here"));
  EXPECT_NE(client.read_until("still here").find("200 OK"), std::string::npos);
}

TEST(Server, RefusesByTheHeadBeforeTheBodyIsRead) {
  Running running;
  TestClient client(running.port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nAuthorization: bad\r\nContent-Length: 1000000\r\n\r\nabc");
  const std::string answer = client.read_until("no");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 401 ")) << answer;
  EXPECT_EQ(running.handled, 0);
}

TEST(Server, BoundsTheBodiesOfAllConnectionsTogether) {
  Running running({.max_body_bytes_in_flight = 100'000});
  TestClient first(running.port());
  TestClient second(running.port());
  first.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n" + std::string(80'000, 'a'));
  std::this_thread::sleep_for(50ms);
  second.send(post("/echo", std::string(50'000, 'b')));
  EXPECT_TRUE(second.read_all().starts_with("HTTP/1.1 503 "));
  first.send(std::string(10'000, 'a'));
  EXPECT_TRUE(first.read_until("aaaa").starts_with("HTTP/1.1 200 "));
  TestClient third(running.port());
  third.send(post("/echo", std::string(90'000, 'c')));
  EXPECT_TRUE(third.read_until("cccc").starts_with("HTTP/1.1 200 "));
}

TEST(Server, ClosesOnSlowHeadersAndBodies) {
  Running running({.header_timeout = 200ms, .body_timeout = 200ms});
  TestClient header(running.port());
  TestClient body(running.port());
  TestClient silent(running.port());
  const auto begin = Clock::now();
  header.send("POST /echo HT");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(50ms);
    header.send("T");
    body.send("x");
  }
  EXPECT_TRUE(header.read_all().starts_with("HTTP/1.1 408 "));
  EXPECT_TRUE(body.read_all().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_TRUE(silent.ended());
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_EQ(running.handled, 0);
}

TEST(Server, ClosesIdleConnections) {
  Running running({.idle_timeout = 100ms});
  TestClient client(running.port());
  client.send(post("/echo", "x"));
  client.read_all();
  EXPECT_TRUE(client.ended());
}

TEST(Server, TellsTheHandlerWhenAClientLeavesAStream) {
  Running running;
  TestClient client(running.port());
  client.send(post("/stream", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  EXPECT_EQ(running.left, 0);
  client.close();
  EXPECT_TRUE(Running::eventually([&] { return running.left == 1; }));
  running.with_stream([](api::Exchange& exchange) {  // ignored
    exchange.write("late");
    exchange.finish();
  });
}

TEST(Server, TellsTheHandlerWhenAClientLeavesBeforeItsAnswer) {
  Running running;
  TestClient client(running.port());
  client.send(post("/stream-later", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  client.close();
  EXPECT_TRUE(Running::eventually([&] { return running.left == 1; }));
}

TEST(Server, NoticesTheLeavingBehindPipelinedBytes) {
  for (const size_t bytes : {size_t{1000}, size_t{200'000}}) {
    Running running;
    TestClient client(running.port());
    client.send(post("/stream", "") + post("/echo", std::string(bytes, 'x')));
    ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
    std::this_thread::sleep_for(20ms);
    client.close();
    EXPECT_TRUE(Running::eventually([&] { return running.left == 1; })) << bytes;
    EXPECT_EQ(running.handled, 1);
  }
}

TEST(Server, DropsAReaderThatDoesNotRead) {
  Running running({.max_unsent_bytes = 64 << 20, .write_timeout = 200ms});
  TestClient client(running.port(), 4096);
  client.send(post("/stream", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  running.with_stream([](api::Exchange& exchange) { exchange.write(std::string(32 << 20, 'x')); });
  EXPECT_TRUE(Running::eventually([&] { return running.left == 1; }));
}

TEST(Server, DropsAReaderWhoseBacklogIsTooLarge) {
  Running running({.max_unsent_bytes = 1 << 20});
  TestClient client(running.port(), 4096);
  client.send(post("/stream", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  const auto begin = Clock::now();
  while (running.left == 0 && Clock::now() - begin < 5s) {
    running.with_stream([](api::Exchange& exchange) { exchange.write(std::string(100'000, 'x')); });
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(running.left, 1);
}

TEST(Server, SendsLargeAnswersToSlowReaders) {
  Running running({.write_timeout = 2s});
  TestClient client(running.port(), 4096);
  const std::string body(8 << 20, 'y');
  std::thread sender([&] { client.send(post("/echo", body)); });
  sender.join();
  client.read_until("\r\n\r\n");
  TestClient other(running.port());
  other.send(post("/echo", "quick"));
  EXPECT_NE(other.read_until("quick").find("200 OK"), std::string::npos);
  const std::string answer = client.read_all(1s);
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, body.size());
}

TEST(Server, TurnsAwayConnectionsBeyondItsBound) {
  Running running({.max_connections = 2});
  TestClient first(running.port());
  TestClient second(running.port());
  for (TestClient* client : {&first, &second}) {
    client->send(post("/echo", "in"));
    client->read_until("in");
  }
  TestClient third(running.port());
  EXPECT_TRUE(third.read_all().starts_with("HTTP/1.1 503 "));
  first.close();
  EXPECT_TRUE(Running::eventually([&] {
    TestClient fourth(running.port());
    fourth.send(post("/echo", "in"));
    return fourth.read_until("in", 1s).starts_with("HTTP/1.1 200 ");
  }));
}

TEST(Server, SurvivesAHandlerThatThrows) {
  Running running;
  TestClient client(running.port());
  client.send(post("/throw", ""));
  client.read_all();
  EXPECT_TRUE(client.ended());
  TestClient other(running.port());
  other.send(post("/echo", "fine"));
  EXPECT_NE(other.read_until("fine").find("200 OK"), std::string::npos);
}

TEST(Server, DrainsRunningRequestsAndRefusesNewOnes) {
  Running running;
  TestClient client(running.port());
  TestClient idle(running.port());
  idle.send(post("/echo", "x"));
  idle.read_until("x");
  client.send(post("/stream", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  EXPECT_FALSE(running.server().stopping());
  running.server().stop();
  idle.read_all();
  EXPECT_TRUE(running.server().stopping());
  EXPECT_TRUE(idle.ended());
  TestClient late(running.port());
  late.send(post("/echo", "x"));
  const std::string refusal = late.read_all();
  EXPECT_TRUE(refusal.starts_with("HTTP/1.1 503 ")) << refusal;
  EXPECT_NE(refusal.find("Retry-After: 1\r\n"), std::string::npos);
  running.with_stream([](api::Exchange& exchange) {
    exchange.write("last words");
    exchange.finish();
  });
  EXPECT_TRUE(client.read_all().ends_with("last words\r\n0\r\n\r\n"));
  EXPECT_EQ(running.left, 0);
  running.join();
  EXPECT_FALSE(TestClient(running.port()).connected());
}

TEST(Server, DropsWhatIsLeftAfterTheDrainTimeout) {
  Running running({.drain_timeout = 100ms});
  TestClient client(running.port());
  client.send(post("/stream", ""));
  ASSERT_TRUE(Running::eventually([&] { return running.opened == 1; }));
  const auto begin = Clock::now();
  running.join();
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_EQ(running.left, 1);
}

TEST(Server, DrainsOnASignal) {
  auto server = Server::listen({.port = 0});
  ASSERT_TRUE(server.has_value());
  std::thread thread([&] {
    (*server)->run(
        {.admit = [](const api::HttpRequest&) { return std::nullopt; },
         .handle = [](api::HttpRequest, std::shared_ptr<api::Exchange> exchange) { exchange->respond({}); }});
  });
  TestClient client((*server)->port());
  client.send(post("/", ""));
  client.read_until("\r\n\r\n");
  ::kill(::getpid(), SIGTERM);
  thread.join();
}

// A program that fails while it starts stops a server that may not run yet.
TEST(Server, StoppedBeforeItRunsItEnds) {
  for (int round = 0; round < 20; ++round) {
    auto server = Server::listen({.port = 0});
    ASSERT_TRUE(server.has_value());
    (*server)->stop();
    (*server)->run({});
    EXPECT_TRUE((*server)->stopping());
  }
}

TEST(Server, NamesThePortThatIsTaken) {
  auto first = Server::listen({.port = 0});
  ASSERT_TRUE(first.has_value());
  const auto second = Server::listen({.port = (*first)->port()});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().kind, ErrorKind::kInvalidRequest);
  EXPECT_EQ(second.error().param, "port");
  EXPECT_NE(second.error().message.find(std::to_string((*first)->port())), std::string::npos);
  const auto nowhere = Server::listen({.host = "no.such.host.invalid", .port = 0});
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().param, "host");
}

}  // namespace
}  // namespace quire::net
