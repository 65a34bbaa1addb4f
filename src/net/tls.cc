#include "net/tls.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace quire::net {
namespace {

constexpr size_t kPiece = 16 << 10;  // the most of a TLS record
constexpr std::chrono::milliseconds kEndTime{2000};

std::unexpected<Error> refuse(std::string option, const std::string& file, const std::string& why) {
  return fail(ErrorKind::kInvalidRequest, fmt::format("{} {}: {}", option, file, why), option);
}

}  // namespace

Result<std::unique_ptr<asio::ssl::context>> make_tls_context(const std::string& certificate_file,
                                                             const std::string& key_file) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code ec;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION,
                       ec);
  // Without this OpenSSL asks for the password on the terminal.
  context->set_password_callback([](size_t, asio::ssl::context::password_purpose) { return std::string(); }, ec);
  context->use_certificate_chain_file(certificate_file, ec);
  if (ec) return refuse("ssl_certfile", certificate_file, "no certificate in PEM can be read: " + ec.message());
  context->use_private_key_file(key_file, asio::ssl::context::pem, ec);
  if (ec)
    return refuse("ssl_keyfile", key_file,
                  "no key in PEM, without a password and of the certificate, can be read: " + ec.message());
  return context;
}

Tunnel::Tunnel(Core& core, tcp::socket client)
    : core_(core), client_(std::move(client), *core.tls), plain_(core.io), deadline_(core.io), ending_(core.io) {
  core_.tunnels.insert(this);
}

Tunnel::~Tunnel() { core_.tunnels.erase(this); }

void Tunnel::close() {
  error_code ignored;
  client_.lowest_layer().close(ignored);
  plain_.close(ignored);
}

void Tunnel::end() {
  if (!serving_) return close();
  ending_.arm(kEndTime, [this] { close(); });
}

awaitable<bool> Tunnel::shake_hands() {
  deadline_.arm(core_.options.header_timeout, [this] { close(); });
  const auto [ec] = co_await client_.async_handshake(asio::ssl::stream_base::server, kAwait);
  deadline_.disarm();
  co_return !ec && !core_.draining;
}

awaitable<void> Tunnel::run() {
  const auto self = shared_from_this();
  const std::string peer = peer_of(client_.next_layer());
  const bool ready = co_await shake_hands();
  if (!ready) co_return close();
  error_code ec;
  asio::local::stream_protocol::socket served(core_.io);
  asio::local::connect_pair(plain_, served, ec);
  if (ec) co_return close();
  serving_ = true;
  serve_connection(core_, std::move(served), peer);
  asio::co_spawn(core_.io, keep_receiving(self), asio::detached);
  co_await send();
  close();
}

// From the client to the connection, which sees the client's end as that of its own socket.
awaitable<void> Tunnel::receive() {
  std::array<char, kPiece> piece;
  for (;;) {
    const auto [failed, size] = co_await client_.async_read_some(asio::buffer(piece), kAwait);
    if (failed) break;
    const auto [lost, written] = co_await asio::async_write(plain_, asio::buffer(piece, size), kAwait);
    if (lost) break;
  }
  error_code ignored;
  plain_.shutdown(asio::socket_base::shutdown_send, ignored);
}

// From the connection to the client, up to the connection's end.
awaitable<void> Tunnel::send() {
  std::array<char, kPiece> piece;
  for (;;) {
    const auto [ended, size] = co_await plain_.async_read_some(asio::buffer(piece), kAwait);
    if (ended) break;
    deadline_.arm(core_.options.write_timeout, [this] { close(); });
    const auto [failed, written] = co_await asio::async_write(client_, asio::buffer(piece, size), kAwait);
    deadline_.disarm();
    if (failed) co_return;
  }
  // The connection may still read what the client sends of a request that it has refused.
  deadline_.arm(2 * kEndTime, [this] { close(); });
  co_await plain_.async_wait(asio::socket_base::wait_error, kAwait);
  // Tells the client that nothing was cut off. It need not answer.
  deadline_.arm(kEndTime, [this] { close(); });
  co_await client_.async_shutdown(kAwait);
  deadline_.disarm();
}

}  // namespace quire::net
