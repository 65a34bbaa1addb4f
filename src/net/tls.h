// TLS in front of the server: a Tunnel speaks TLS with one client and plain bytes with a Connection, over a pair of
// sockets. So a Connection serves both alike, and what it does when a client leaves or stalls holds for both.
//
// All of it lives on the io thread. A client has the time of a header for its handshake, and a tunnel whose client
// reads nothing ends like a connection.
#pragma once

#include <boost/asio/ssl.hpp>
#include <memory>
#include <string>

#include "net/connection.h"
#include "quire/error.h"

namespace quire::net {

// From a chain of certificates and the key of its first, both in PEM. kInvalidRequest names ssl_certfile or
// ssl_keyfile: it cannot be read, is no PEM, is locked by a password, or they do not belong together.
Result<std::unique_ptr<asio::ssl::context>> make_tls_context(const std::string& certificate_file,
                                                             const std::string& key_file);

class Tunnel : public std::enable_shared_from_this<Tunnel> {
 public:
  Tunnel(Core& core, tcp::socket client);
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  // Shakes hands, has a connection serve the plain end, and passes bytes both ways until both have ended.
  awaitable<void> run();
  // Ends it: at once before the connection began, else when what is under way has gone out, or after a moment.
  void end();

 private:
  static awaitable<void> keep_receiving(std::shared_ptr<Tunnel> self) { co_await self->receive(); }
  awaitable<bool> shake_hands();
  awaitable<void> receive();
  awaitable<void> send();
  void close();

  Core& core_;
  asio::ssl::stream<tcp::socket> client_;
  asio::local::stream_protocol::socket plain_;
  Deadline deadline_;  // of the handshake, then of what is sent
  Deadline ending_;
  bool serving_ = false;
};

}  // namespace quire::net
