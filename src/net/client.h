// An HTTP/1.1 client of one server: answers come whole, or event by event as server-sent events.
//
// send() begins an exchange on a connection of its own; run() works until all exchanges and timers are over and makes
// all callbacks, which may send and wait for more. What the server may spend is bounded: the bytes of a header, a body
// and an event, the time to connect, and the time without a byte. Whatever it does, `done` comes once, with the answer
// or with what went wrong. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "api/http.h"
#include "quire/error.h"

namespace quire::net {

struct Url {
  std::string host;  // a name or an address, an IPv6 one without its brackets
  uint16_t port = 80;
  std::string path = {};  // without a '/' at its end

  static Result<Url> parse(std::string_view text);  // "http://HOST[:PORT][/PATH]"
};

struct ClientOptions {
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;  // of one answer, also of all its events together
  size_t max_event_bytes = 4 << 20;
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds stall_timeout{600'000};
};

struct Call {
  std::string method = "GET";
  std::string target;  // path and query, behind the path of the server's URL
  api::Headers headers = {};
  std::string body = {};  // JSON
  // The data of each event of a 200 that is a stream of them, as it comes; the answer's body is empty then.
  std::function<void(std::string_view data)> on_event = {};
  std::function<void(Result<api::HttpResponse> answer)> done;
};

class Client {
 public:
  // Finds the server's addresses. kNotFound if its name has none.
  static Result<std::unique_ptr<Client>> to(const Url& url, ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(Call call);
  // Calls `task` from run() when the time has come.
  void at(std::chrono::steady_clock::time_point time, std::function<void()> task);
  void run();

  // One exchange alone; not from a callback.
  Result<api::HttpResponse> fetch(Call call);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::net
