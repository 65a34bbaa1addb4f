#include "net/connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <optional>

#include "api/error_reply.h"
#include "base/check.h"
#include "base/log.h"

namespace quire::net {
namespace {

using Parser = http::request_parser<http::string_body>;

// Bytes of later requests that are taken in while one runs, so that the end of the connection can be seen behind them.
constexpr size_t kReadAhead = 64 << 10;
constexpr std::chrono::milliseconds kPeerCheck{250};    // where reading ahead has reached its bound
constexpr std::chrono::milliseconds kLingerTime{2000};  // for a client that still sends what was refused
constexpr size_t kLingerBytes = 64 << 20;

// A posted handler lies in its task: that waits once at most, so the place is free.
template <class T>
struct PlaceInTask {
  using value_type = T;
  explicit PlaceInTask(api::Task* owner) : task(owner) {}
  template <class U>
  PlaceInTask(const PlaceInTask<U>& other) : task(other.task) {}
  T* allocate(size_t n) {
    QUIRE_CHECK(n * sizeof(T) <= sizeof task->place);
    return reinterpret_cast<T*>(task->place);
  }
  void deallocate(T*, size_t) {}
  template <class U>
  bool operator==(const PlaceInTask<U>& other) const {
    return task == other.task;
  }

  api::Task* task;
};

void post_task(asio::io_context& io, std::shared_ptr<api::Task> task) {
  if (task->posted.exchange(true)) return;
  const PlaceInTask<std::byte> place(task.get());
  asio::post(io, asio::bind_allocator(place, [task = std::move(task)] {
               task->posted = false;
               task->run();
             }));
}

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

// The path as far as a request's head has come that was not read to its end: the parser may not have begun.
std::string path_begun(const Parser& parser, const boost::beast::flat_buffer& unread) {
  const auto parsed = parser.get().target();
  if (!parsed.empty()) return std::string(path_of({parsed.data(), parsed.size()}));
  const auto bytes = unread.data();
  const std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos) return {};
  const std::string_view rest = text.substr(blank + 1);
  return std::string(path_of(rest.substr(0, rest.find_first_of(" \r\n"))));
}

api::HttpRequest head_of(const Parser& parser, const std::string& client) {
  const auto& message = parser.get();
  api::HttpRequest head;
  head.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  head.path = std::string(path_of(target));
  const size_t question = target.find('?');
  if (question != std::string_view::npos) head.query = std::string(target.substr(question + 1));
  head.client = client;
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    head.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return head;
}

bool expects_continue(const Parser& parser) {
  const auto& message = parser.get();
  return message.version() == 11 && message.count(http::field::expect) == 1 &&
         boost::beast::iequals(message[http::field::expect], "100-continue");
}

// What is wrong with a head that the parser accepts, if anything.
std::optional<api::HttpResponse> check_head(const Parser& parser, std::string_view path) {
  const auto& message = parser.get();
  if (message.version() != 10 && message.version() != 11)
    return error_of(400, path, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (message.version() == 11 && message.count(http::field::host) != 1) {
    return error_of(400, path, "an HTTP/1.1 request needs exactly one Host header");
  }
  if (message.count(http::field::transfer_encoding) > 0 && !parser.chunked()) {
    return error_of(400, path, "the only Transfer-Encoding understood is chunked");
  }
  if (message.count(http::field::transfer_encoding) > 0 && message.count(http::field::content_length) > 0) {
    return error_of(400, path, "a request has either Content-Length or Transfer-Encoding");
  }
  if (message.target().empty() || message.target().front() != '/')
    return error_of(400, path, "the request target must begin with '/'");
  // HTTP/1.0 has no expectations.
  if (message.version() == 11 && message.count(http::field::expect) > 0 && !expects_continue(parser))
    return error_of(417, path, "the only expectation that can be met is 100-continue");
  return std::nullopt;
}

// While it lives, the handler may still answer; at its end, an answer that is not out by then never will be.
class RunningExchange {
 public:
  RunningExchange(Core& core, Outbox& outbox) : core_(core), outbox_(outbox) { ++core_.running; }
  ~RunningExchange() {
    outbox_.detach();
    outbox_.close();
    core_.end_exchange();
  }
  RunningExchange(const RunningExchange&) = delete;
  RunningExchange& operator=(const RunningExchange&) = delete;

 private:
  Core& core_;
  Outbox& outbox_;
};

bool is_http_error(const error_code& ec) {
  static const auto& category = http::make_error_code(http::error::bad_method).category();
  return ec.category() == category && ec != http::error::end_of_stream && ec != http::error::partial_message;
}

}  // namespace

api::HttpResponse error_of(int status, std::string_view path, std::string message, std::string code) {
  return api::error_response({.status = status, .message = std::move(message), .code = std::move(code)}, path);
}

std::string peer_of(const tcp::socket& socket) {
  error_code ignored;
  const tcp::endpoint peer = socket.remote_endpoint(ignored);
  return fmt::format("{}:{}", peer.address().to_string(), peer.port());
}

void serve_connection(Core& core, Socket socket, std::string client) {
  const auto connection = std::make_shared<Connection>(core, std::move(socket), std::move(client));
  core.connections.insert(connection.get());
  asio::co_spawn(core.io, connection->run(), [&core, connection](std::exception_ptr failure) {
    core.connections.erase(connection.get());
    if (!failure) return;
    connection->close();
    log::error("a connection ended with an exception");
  });
}

Connection::Connection(Core& core, Socket socket, std::string client)
    : core_(core),
      socket_(std::move(socket)),
      buffer_(core.options.max_header_bytes + kReadAhead),
      wake_(core.io),
      deadline_(core.io),
      client_(std::move(client)) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
}

// Reads, admits and answers one request. False if the connection ends here.
awaitable<bool> Connection::serve_one() {
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(core_.options.max_header_bytes));
  parser.body_limit(core_.options.max_body_bytes);
  const bool have_head = co_await read_head(parser);
  if (!have_head) co_return false;

  const bool keep_alive = parser.get().keep_alive();
  api::HttpRequest request = head_of(parser, client_);
  std::optional<api::HttpResponse> refusal = check_head(parser, request.path);
  const bool sound = !refusal;
  if (sound && core_.draining) refusal = error_of(503, request.path, "the server is shutting down", "draining");
  if (sound && !refusal) refusal = core_.handler.admit(request);
  if (refusal) {
    const bool reusable = sound && keep_alive && parser.is_done() && !core_.draining;
    co_return co_await refuse(std::move(*refusal), reusable);
  }

  BodyShare share(core_);
  const bool have_body = co_await read_body(parser, request.path, share);
  if (!have_body) co_return false;

  const auto outbox = std::make_shared<Outbox>(outbox_options(parser));
  request.body = std::move(parser.get().body());
  const RunningExchange running(core_, *outbox);
  try {
    core_.handler.handle(std::move(request), outbox);
  } catch (const std::exception& failure) {
    log::error(fmt::format("a handler failed: {}", failure.what()));
    co_return false;
  }
  const bool sent = co_await answer(outbox);
  co_return sent && outbox->keep_alive();
}

OutboxOptions Connection::outbox_options(const Parser& parser) {
  const auto& message = parser.get();
  return {.http11 = message.version() == 11,
          .head_only = message.method() == http::verb::head,
          .keep_alive = message.keep_alive() && !core_.draining,
          .max_unsent = core_.options.max_unsent_bytes,
          .post = [&core = core_](std::function<void()> task) { asio::post(core.io, std::move(task)); },
          .post_task = [&core = core_](std::shared_ptr<api::Task> task) { post_task(core.io, std::move(task)); },
          .wake = [this] { wake_.cancel(); },
          .drop = [this] { close(); },
          .date = [&core = core_] { return core.now(); }};
}

awaitable<bool> Connection::read_head(Parser& parser) {
  if (buffer_.size() == 0) {
    arm(first_ ? core_.options.header_timeout : core_.options.idle_timeout);
    idle_ = true;
    const auto [ec] = co_await socket_.async_wait(Socket::wait_read, kAwait);
    idle_ = false;
    deadline_.disarm();
    if (ec) co_return false;
  }
  first_ = false;
  arm(core_.options.header_timeout);
  const auto [ec, size] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
  deadline_.disarm();
  if (!ec) co_return true;
  const std::string path = path_begun(parser, buffer_);
  if (deadline_.expired()) {
    co_await refuse(error_of(408, path, "the request's header took too long"), false);
  } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    co_await refuse(
        error_of(431, path,
                 fmt::format("the request's header is larger than {} bytes", core_.options.max_header_bytes)),
        false);
  } else if (ec == http::error::body_limit) {
    co_await refuse(
        error_of(413, path, fmt::format("the request's body is larger than {} bytes", core_.options.max_body_bytes)),
        false);
  } else if (is_http_error(ec)) {
    co_await refuse(error_of(400, path, fmt::format("this is no HTTP request: {}", ec.message())), false);
  }
  co_return false;
}

awaitable<bool> Connection::read_body(Parser& parser, const std::string& path, BodyShare& share) {
  if (!parser.is_done() && buffer_.size() == 0 && expects_continue(parser)) {
    const bool sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return false;
  }
  arm(core_.options.body_timeout);
  while (!parser.is_done()) {
    const auto [ec, size] = co_await http::async_read_some(socket_, buffer_, parser, kAwait);
    const bool fits = share.grow_to(parser.get().body().size());
    if (!ec && fits) continue;
    deadline_.disarm();
    parser.get().body() = {};
    share.grow_to(0);
    if (!fits) {
      co_await refuse(error_of(503, path, "too many large requests at once", "busy"), false);
    } else if (deadline_.expired()) {
      co_await refuse(error_of(408, path, "the request's body took too long"), false);
    } else if (ec == http::error::body_limit) {
      co_await refuse(
          error_of(413, path, fmt::format("the request's body is larger than {} bytes", core_.options.max_body_bytes)),
          false);
    } else if (is_http_error(ec)) {
      co_await refuse(error_of(400, path, fmt::format("the request's body is malformed: {}", ec.message())), false);
    }
    co_return false;
  }
  deadline_.disarm();
  co_return true;
}

// Sends what the handler puts out until it is done. False if the client left or was dropped before.
awaitable<bool> Connection::answer(const std::shared_ptr<Outbox>& outbox) {
  if (!outbox->done()) {
    watching_ = true;
    asio::co_spawn(core_.io, keep_watching(shared_from_this()), asio::detached);
  }
  bool alive = true;
  while (alive) {
    if (gone_) {
      alive = false;
      break;
    }
    if (core_.draining) outbox->forbid_keep_alive();
    std::string data = outbox->take();
    if (!data.empty()) {
      alive = co_await send(std::move(data));
      continue;
    }
    if (outbox->done()) break;
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(kAwait);
  }
  if (!alive) close();
  while (watching_) {
    error_code ignored;
    socket_.cancel(ignored);
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(kAwait);
  }
  co_return alive;
}

// Runs beside answer() and notices when the client leaves.
awaitable<void> Connection::watch() {
  asio::steady_timer pause(core_.io);
  bool cancelled = false;
  while (!cancelled && !gone_) {
    if (buffer_.size() >= kReadAhead) {
      pause.expires_after(kPeerCheck);
      co_await pause.async_wait(kAwait);
      if (peer_left()) close();
      continue;
    }
    const auto [ec] = co_await socket_.async_wait(Socket::wait_read, kAwait);
    cancelled = static_cast<bool>(ec);
    if (!cancelled && !read_ahead()) close();
  }
  watching_ = false;
  wake_.cancel();
}

// Takes in what has arrived. False at the end of the connection.
bool Connection::read_ahead() {
  error_code ec;
  const size_t size = socket_.read_some(buffer_.prepare(kReadAhead - buffer_.size()), ec);
  buffer_.commit(size);
  return !ec || ec == asio::error::would_block || ec == asio::error::interrupted;
}

bool Connection::peer_left() {
  pollfd peer{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&peer, 1, 0) != 0;
}

// Sends all of `data`; the write timeout begins anew with each progress.
awaitable<bool> Connection::send(std::string data) {
  size_t sent = 0;
  while (sent < data.size()) {
    deadline_.arm(core_.options.write_timeout, [this] { close(); });
    const auto [ec, size] =
        co_await socket_.async_write_some(asio::buffer(data.data() + sent, data.size() - sent), kAwait);
    deadline_.disarm();
    if (ec) co_return false;
    sent += size;
  }
  co_return true;
}

// Answers without the handler. What the client still sends of the refused request is thrown away.
awaitable<bool> Connection::refuse(api::HttpResponse response, bool keep_alive) {
  std::string data;
  append_head(data, response, {.keep_alive = keep_alive, .date = core_.now()});
  data += response.body;
  const bool sent = co_await send(std::move(data));
  if (sent && !keep_alive) co_await linger();
  co_return sent&& keep_alive;
}

// Closing with unread bytes would reset the connection and take the answer from the client: read on for a moment.
awaitable<void> Connection::linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  deadline_.arm(kLingerTime, [this] { close(); });
  std::string waste(16 << 10, '\0');
  size_t total = 0;
  while (total < kLingerBytes) {
    const auto [ec, size] = co_await socket_.async_read_some(asio::buffer(waste), kAwait);
    if (ec) break;
    total += size;
  }
  deadline_.disarm();
}

}  // namespace quire::net
