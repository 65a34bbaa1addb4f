// The inside of the server: what its connections share, and one connection. Only server.cc, connection.cc and tls.cc
// include this, since Boost's headers cost each of them seconds. All of it lives on the io thread.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "api/http.h"
#include "net/outbox.h"
#include "net/server.h"
#include "net/wire.h"

namespace quire::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;
using tcp = asio::ip::tcp;

inline constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

class Connection;
class Tunnel;
// Of TCP, or an end of a tunnel's pair.
using Socket = asio::generic::stream_protocol::socket;

// What all connections of a server share.
struct Core {
  ServerOptions options;
  api::Handler handler;
  std::atomic<bool> draining = false;  // read by any thread, set on the io thread
  size_t body_bytes = 0;               // taken in by all connections for requests that still run
  int running = 0;                     // exchanges that the handler has
  std::unordered_set<Connection*> connections;
  std::unordered_set<Tunnel*> tunnels;
  std::unique_ptr<asio::ssl::context> tls;  // null: plain HTTP
  std::string date;
  std::time_t date_second = -1;
  // Destroyed first, with the coroutines in it; the acceptor and timers before it.
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::signal_set signals{io};
  asio::steady_timer drain_timer{io};

  std::string_view now() {
    const std::time_t second = std::time(nullptr);
    if (std::exchange(date_second, second) != second) date = http_date(second);
    return date;
  }
  void begin_drain();
  void end_exchange();
  void close_all();
};

// Cuts off an operation that takes too long: its owner arms it, the expiry runs once, disarm() forgets it.
class Deadline {
 public:
  explicit Deadline(asio::io_context& io) : timer_(io) {}

  void arm(std::chrono::milliseconds time, std::function<void()> expire) {
    expired_ = false;
    timer_.expires_after(time);
    // The round tells an expiry that was already queued when disarm() came from one that counts.
    timer_.async_wait(
        [this, alive = std::weak_ptr(alive_), round = ++round_, expire = std::move(expire)](error_code ec) {
          if (ec || alive.expired() || round != round_) return;
          expired_ = true;
          expire();
        });
  }
  void disarm() {
    ++round_;
    timer_.cancel();
  }
  bool expired() const { return expired_; }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();
  uint64_t round_ = 0;
  bool expired_ = false;
};

// Bytes counted into the core's total until the request that holds them is over.
class BodyShare {
 public:
  explicit BodyShare(Core& core) : core_(core) {}
  ~BodyShare() { core_.body_bytes -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  bool grow_to(size_t bytes) {
    core_.body_bytes += bytes - bytes_;
    bytes_ = bytes;
    return core_.body_bytes <= core_.options.max_body_bytes_in_flight;
  }

 private:
  Core& core_;
  size_t bytes_ = 0;
};

// One client's connection: a coroutine reads a request, has it answered, and begins again. While an answer is made, a
// second one watches for the client's leaving and reads ahead.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `client` is its address, for people.
  Connection(Core& core, Socket socket, std::string client);

  awaitable<void> run() {
    bool more = true;
    while (more) more = co_await serve_one();
    close();
  }

  void close() {
    gone_ = true;
    error_code ignored;
    socket_.close(ignored);
    wake_.cancel();
  }
  // No request runs or is being read.
  bool idle() const { return idle_; }

 private:
  using Parser = http::request_parser<http::string_body>;
  awaitable<bool> serve_one();
  awaitable<bool> read_head(Parser& parser);
  awaitable<bool> read_body(Parser& parser, const std::string& path, BodyShare& share);
  awaitable<bool> answer(const std::shared_ptr<Outbox>& outbox);
  static awaitable<void> keep_watching(std::shared_ptr<Connection> self) { co_await self->watch(); }
  awaitable<void> watch();
  awaitable<bool> send(std::string data);
  awaitable<bool> refuse(api::HttpResponse response, bool keep_alive);
  awaitable<void> linger();
  bool read_ahead();
  bool peer_left();
  void arm(std::chrono::milliseconds time) {
    deadline_.arm(time, [this] {
      error_code ignored;
      socket_.cancel(ignored);
    });
  }
  OutboxOptions outbox_options(const Parser& parser);

  Core& core_;
  Socket socket_;
  boost::beast::flat_buffer buffer_;
  asio::steady_timer wake_;
  Deadline deadline_;
  std::string client_;
  bool idle_ = false;
  bool first_ = true;
  bool watching_ = false;
  bool gone_ = false;
};

// Has a connection serve the socket from now on.
void serve_connection(Core& core, Socket socket, std::string client);
// "127.0.0.1:40312"
std::string peer_of(const tcp::socket& socket);

// An answer that no handler made, in the shape of the API's errors at this path.
api::HttpResponse error_of(int status, std::string_view path, std::string message, std::string code = {});

}  // namespace quire::net
