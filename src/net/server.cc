#include "net/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/log.h"
#include "net/connection.h"
#include "net/tls.h"

namespace quire::net {

void Core::begin_drain() {
  if (draining.exchange(true)) {
    close_all();
    return;
  }
  drain_timer.expires_after(options.drain_timeout);
  drain_timer.async_wait([this](error_code ec) {
    if (!ec) close_all();
  });
  const auto all = connections;
  for (Connection* connection : all) {
    if (connection->idle()) connection->close();
  }
  if (running == 0) close_all();
}

void Core::end_exchange() {
  --running;
  if (draining && running == 0) close_all();
}

void Core::close_all() {
  error_code ignored;
  acceptor.close(ignored);
  signals.cancel(ignored);
  drain_timer.cancel();
  const auto all = connections;
  for (Connection* connection : all) connection->close();
  const auto coded = tunnels;
  for (Tunnel* tunnel : coded) tunnel->end();
}

namespace {

void serve(Core& core, tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (core.tls == nullptr) {
    std::string client = peer_of(socket);
    return serve_connection(core, std::move(socket), std::move(client));
  }
  const auto tunnel = std::make_shared<Tunnel>(core, std::move(socket));
  asio::co_spawn(core.io, tunnel->run(), [tunnel](std::exception_ptr failure) {
    if (failure) log::error("a connection over TLS ended with an exception");
  });
}

// One connection too many: told so if it can be done without waiting.
void turn_away(Core& core, tcp::socket socket) {
  if (core.tls != nullptr) return;
  const api::HttpResponse response = error_of(503, {}, "too many connections", "busy");
  std::string data;
  append_head(data, response, {.keep_alive = false, .date = core.now()});
  data += response.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(data), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

awaitable<void> accept_all(Core& core) {
  asio::steady_timer pause(core.io);
  while (core.acceptor.is_open()) {
    auto [ec, socket] = co_await core.acceptor.async_accept(kAwait);
    if (!core.acceptor.is_open()) break;
    if (ec) {
      // Out of descriptors, most likely: others must end first.
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(kAwait);
    } else if (std::max(core.connections.size(), core.tunnels.size()) >=
               static_cast<size_t>(core.options.max_connections)) {
      turn_away(core, std::move(socket));
    } else {
      serve(core, std::move(socket));
    }
  }
}

Result<void> bind(Core& core) {
  const ServerOptions& options = core.options;
  error_code ec;
  tcp::resolver resolver(core.io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("host '{}' is no address of this machine: {}", options.host, ec.message()), "host");
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  core.acceptor.open(endpoint.protocol(), ec);
  if (!ec) core.acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) core.acceptor.bind(endpoint, ec);
  if (!ec) core.acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (!ec) return {};
  if (ec == asio::error::address_in_use) {
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("port {} of {} is in use by another program; choose another with --port", options.port,
                            options.host),
                "port");
  }
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("cannot listen on {}:{}: {}", options.host, options.port, ec.message()), "host");
}

}  // namespace

class Server::Impl {
 public:
  Core core;
  tcp::endpoint endpoint;  // where it listens, for other threads than the acceptor's too
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->core.options = std::move(options);
  const ServerOptions& wanted = impl->core.options;
  if (!wanted.ssl_certfile.empty()) {
    auto tls =
        make_tls_context(wanted.ssl_certfile, wanted.ssl_keyfile.empty() ? wanted.ssl_certfile : wanted.ssl_keyfile);
    if (!tls) return std::unexpected(tls.error());
    impl->core.tls = std::move(*tls);
  }
  if (auto bound = bind(impl->core); !bound) return std::unexpected(bound.error());
  error_code ignored;
  impl->endpoint = impl->core.acceptor.local_endpoint(ignored);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->endpoint.port(); }

std::string Server::url() const {
  const tcp::endpoint& endpoint = impl_->endpoint;
  const std::string address = endpoint.address().to_string();
  return fmt::format(fmt::runtime(endpoint.address().is_v6() ? "{}://[{}]:{}" : "{}://{}:{}"),
                     impl_->core.tls == nullptr ? "http" : "https", address, endpoint.port());
}

void Server::run(api::Handler handler) {
  Core& core = impl_->core;
  core.handler = std::move(handler);
  if (core.options.stop_on_signals) {
    error_code ignored;
    core.signals.add(SIGTERM, ignored);
    core.signals.add(SIGINT, ignored);
    asio::co_spawn(
        core.io,
        [&core]() -> awaitable<void> {
          // Closed already if stop() came before run(): nobody would end the wait then.
          while (core.acceptor.is_open()) {
            const auto [ec, signal] = co_await core.signals.async_wait(kAwait);
            if (ec) co_return;
            core.begin_drain();
          }
        },
        asio::detached);
  }
  asio::co_spawn(core.io, accept_all(core), asio::detached);
  for (;;) {
    try {
      core.io.run();
      return;
    } catch (const std::exception& failure) {
      log::error(fmt::format("a task of the server failed: {}", failure.what()));
    }
  }
}

void Server::stop() {
  asio::post(impl_->core.io, [&core = impl_->core] { core.begin_drain(); });
}

bool Server::stopping() const { return impl_->core.draining; }

}  // namespace quire::net
