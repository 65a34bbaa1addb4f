// An HTTP/1.1 server on one thread: keep-alive, pipelining, chunked bodies in, streamed answers out.
//
// Everything that a client may spend is bounded: connections, header and body bytes (one body, and all bodies
// together), the time for a header, a body, an idle connection, and a piece of an answer that the client does not read.
// A client that leaves while its request runs is noticed at once, also behind pipelined bytes, and its Exchange is
// told.
//
// listen() and run() belong to one thread; everything else, and Exchange::post(), may be called from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "api/http.h"
#include "quire/error.h"

namespace quire::net {

struct ServerOptions {
  std::string host = "127.0.0.1";  // a name or an address
  uint16_t port = 8000;            // 0: any free one
  std::string ssl_certfile = {};   // PEM, a chain; with it all clients must speak TLS, 1.2 at least
  std::string ssl_keyfile = {};    // PEM; empty: it stands in ssl_certfile
  int max_connections = 1024;
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 16 << 20;
  size_t max_body_bytes_in_flight = 256 << 20;  // of all connections together
  size_t max_unsent_bytes = 16 << 20;           // of one streamed answer, before a slow reader is dropped
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};   // between the requests of one connection
  std::chrono::milliseconds write_timeout{30'000};  // without progress
  std::chrono::milliseconds drain_timeout{30'000};
  bool stop_on_signals = true;  // SIGTERM and SIGINT drain; a second one ends at once
};

class Server {
 public:
  // Binds and listens; clients that connect wait until run(). kInvalidRequest with `param` "host" or "port" if the
  // address cannot be had, "ssl_certfile" or "ssl_keyfile" if these are not usable.
  static Result<std::unique_ptr<Server>> listen(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8000"

  // Serves until stop() or a signal, then drains: closes idle connections, answers new requests with 503, on new
  // connections too, lets running ones finish within the drain timeout, and drops what is left.
  void run(api::Handler handler);
  void stop();
  bool stopping() const;  // draining has begun, or ended

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::net
