// What the server itself refuses has the shape of errors at the request's path, as far as that has come.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "net/server.h"
#include "net/test_client.h"

namespace quire::net {
namespace {

// Keeps what it handles until it ends.
class Keeping {
 public:
  explicit Keeping(ServerOptions options) {
    options.port = 0;
    options.stop_on_signals = false;
    server_ = std::move(*Server::listen(std::move(options)));
    thread_ = std::thread([this] {
      server_->run({.admit = [](const api::HttpRequest&) { return std::nullopt; },
                    .handle =
                        [this](api::HttpRequest, std::shared_ptr<api::Exchange> exchange) {
                          exchange_ = std::move(exchange);
                          handled.set_value();
                        }});
    });
  }
  ~Keeping() {
    stop();
    thread_.join();
  }
  void stop() { server_->stop(); }
  void answer() {
    exchange_->post([exchange = exchange_] { exchange->respond({}); });
  }
  uint16_t port() const { return server_->port(); }

  std::promise<void> handled;

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::shared_ptr<api::Exchange> exchange_;
};

struct Refused {
  const char* what;
  std::string head;  // behind the path
  int status;
  const char* type;
};

TEST(ErrorShape, IsThatOfThePath) {
  const std::vector<Refused> all = {
      {"header too large", "HTTP/1.1\r\nHost: a\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n", 431,
       "invalid_request_error"},
      {"two hosts", "HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_request_error"},
      {"no length", "HTTP/1.1\r\nHost: a\r\nContent-Length: ten\r\n\r\n", 400, "invalid_request_error"},
      {"expectation", "HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417, "invalid_request_error"},
      {"declared body too large", "HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n", 413, "request_too_large"},
      {"body too large",
       "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + std::string(0x20000, 'x'), 413,
       "request_too_large"},
      {"no chunk", "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "invalid_request_error"},
      {"slow header", "HTTP/1.1\r\nHost: a\r\n", 408, "invalid_request_error"},
      {"slow body", "HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx", 408, "invalid_request_error"},
  };
  Keeping server({.max_body_bytes = 100'000, .header_timeout = 100ms, .body_timeout = 100ms});
  for (const Refused& request : all) {
    for (const char* path : {"/v1/messages", "/v1/messages/count_tokens?beta=true", "/v1/completions"}) {
      TestClient client(server.port());
      client.send("POST " + std::string(path) + " " + request.head);
      const std::string answer = client.read_all();
      EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(request.status) + " ")) << request.what << answer;
      const bool anthropic = std::string_view(path).starts_with("/v1/messages");
      const std::string begin =
          anthropic ? R"({"type":"error","error":{"type":")" + std::string(request.type) + R"(","message":")"
                    : R"({"error":{"message":")";
      EXPECT_NE(answer.find("\r\n\r\n" + begin), std::string::npos) << request.what << path << answer;
    }
  }
}

TEST(ErrorShape, IsThatOfThePathWhileTheServerDrains) {
  Keeping server({});
  TestClient running(server.port()), late(server.port());
  running.send("GET /v1/messages HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_EQ(server.handled.get_future().wait_for(10s), std::future_status::ready);
  late.send("GET /v1/messages HTTP/1.1\r\n");
  std::this_thread::sleep_for(50ms);  // so that its request has begun, or it is not idle at least
  server.stop();
  late.send("Host: a\r\n\r\n");
  EXPECT_NE(late.read_all().find(R"({"type":"error","error":{"type":"overloaded_error","message":")"),
            std::string::npos);
  server.answer();
  EXPECT_NE(running.read_all().find("200 OK"), std::string::npos);
}

}  // namespace
}  // namespace quire::net
