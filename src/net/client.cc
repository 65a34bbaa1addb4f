#include "net/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "net/sse.h"

namespace quire::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kBuffer = 256 << 10;

using Answer = Result<api::HttpResponse>;

std::string described(const error_code& ec) {
  if (ec == beast::error::timeout) return "it sent nothing for too long";
  if (ec == http::error::end_of_stream || ec == asio::error::connection_reset || ec == asio::error::broken_pipe)
    return "it closed the connection without an answer";
  if (ec == http::error::partial_message) return "it closed the connection in the middle of an answer";
  if (ec == http::error::body_limit || ec == http::error::buffer_overflow) return "its answer is too long";
  if (ec == http::error::header_limit) return "its answer's header is too long";
  if (ec.category() == http::make_error_code(http::error::bad_version).category())
    return fmt::format("its answer is not HTTP/1.1: {}", ec.message());
  return ec.message();
}

bool is_event_stream(const http::response<http::string_body>& message) {
  return message.result() == http::status::ok &&
         std::string_view(message[http::field::content_type]).starts_with("text/event-stream");
}

api::HttpResponse head_of(const http::response<http::string_body>& message) {
  api::HttpResponse head{.status = static_cast<int>(message.result_int()), .content_type = {}};
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (name == "content-type") head.content_type = std::string(field.value());
    head.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return head;
}

std::optional<uint16_t> port_of(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

}  // namespace

Result<Url> Url::parse(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("{} {}", in_quotes(text), what), "base_url");
  };
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) return wrong("is HTTPS, which this client does not speak; it must be http://...");
  const bool printable = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
  if (!text.starts_with(kScheme) || !printable || text.find_first_of("?#@") != std::string_view::npos)
    return wrong("must be http://HOST[:PORT][/PATH]");
  std::string_view rest = text.substr(kScheme.size());
  std::string_view authority = rest.substr(0, rest.find('/'));
  std::string_view path = rest.substr(authority.size());
  while (path.ends_with('/')) path.remove_suffix(1);

  const bool bracketed = authority.starts_with('[');
  const size_t host_end = bracketed ? authority.find(']') : authority.rfind(':');
  if (bracketed && host_end == std::string_view::npos) return wrong("has no ']' behind its address");
  const std::string_view host = bracketed ? authority.substr(1, host_end - 1) : authority.substr(0, host_end);
  std::string_view port = authority.substr(std::min(authority.size(), bracketed ? host_end + 1 : host.size()));
  Url url{.host = std::string(host), .path = std::string(path)};
  if (host.empty() || (!bracketed && host.find(':') != std::string_view::npos)) return wrong("names no host");
  if (port.empty()) return url;
  const auto number = port.starts_with(':') ? port_of(port.substr(1)) : std::nullopt;
  if (!number) return wrong("must have a port from 1 to 65535");
  url.port = *number;
  return url;
}

class Client::Impl {
 public:
  asio::awaitable<Answer> exchange(Call& call) {
    beast::tcp_stream stream(io);
    stream.expires_after(options.connect_timeout);
    const auto [unconnected, endpoint] = co_await stream.async_connect(endpoints, kAwait);
    if (unconnected) {
      co_return fail(ErrorKind::kNotFound,
                     fmt::format("no connection to {}: {}", host,
                                 unconnected == beast::error::timeout ? "timed out" : unconnected.message()));
    }
    error_code ignored;
    stream.socket().set_option(tcp::no_delay(true), ignored);

    http::request<http::string_body> request = request_of(call);
    stream.expires_after(options.stall_timeout);
    // A server may refuse before it has read all, so that writing fails and an answer is there.
    co_await http::async_write(stream, request, kAwait);
    co_return co_await receive(stream, call);
  }

  asio::io_context io{1};
  tcp::resolver::results_type endpoints;
  std::string host;  // with the port, as Host says it
  std::string path;
  ClientOptions options;

 private:
  http::request<http::string_body> request_of(Call& call) const {
    http::request<http::string_body> request;
    request.version(11);
    request.method_string(call.method);
    request.target(path + call.target);
    request.set(http::field::host, host);
    request.set(http::field::user_agent, "quire");
    request.set(http::field::connection, "close");
    if (!call.body.empty()) request.set(http::field::content_type, "application/json");
    for (const auto& [name, value] : call.headers) request.set(name, value);
    request.body() = std::move(call.body);
    request.prepare_payload();
    return request;
  }

  asio::awaitable<Answer> receive(beast::tcp_stream& stream, Call& call) {
    const auto broken = [this](const error_code& ec) {
      return fail(ErrorKind::kExhausted, fmt::format("{}: {}", host, described(ec)));
    };
    http::response_parser<http::string_body> parser;
    parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);
    if (call.method == "HEAD") parser.skip(true);
    beast::flat_buffer buffer(std::max(kBuffer, options.max_header_bytes));
    stream.expires_after(options.stall_timeout);
    const auto [no_head, head_bytes] = co_await http::async_read_header(stream, buffer, parser, kAwait);
    if (no_head) co_return broken(no_head);

    api::HttpResponse answer = head_of(parser.get());
    const bool events = call.on_event && is_event_stream(parser.get());
    SseParser sse(options.max_event_bytes);
    for (;;) {
      const std::string piece = std::exchange(parser.get().body(), {});
      if (events && !sse.feed(piece, call.on_event))
        co_return fail(ErrorKind::kExhausted, fmt::format("{}: an event of its answer is too long", host));
      if (!events) answer.body += piece;
      if (parser.is_done()) co_return answer;
      stream.expires_after(options.stall_timeout);
      const auto [cut, bytes] = co_await http::async_read_some(stream, buffer, parser, kAwait);
      if (cut) co_return broken(cut);
    }
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::to(const Url& url, ClientOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->path = url.path;
  impl->host = url.host.find(':') == std::string::npos ? fmt::format("{}:{}", url.host, url.port)
                                                       : fmt::format("[{}]:{}", url.host, url.port);
  error_code ec;
  impl->endpoints = tcp::resolver(impl->io).resolve(url.host, std::to_string(url.port), ec);
  if (ec || impl->endpoints.empty())
    return fail(ErrorKind::kNotFound, fmt::format("host {} has no address: {}", in_quotes(url.host), ec.message()),
                "base_url");
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

void Client::send(Call call) {
  auto held = std::make_shared<Call>(std::move(call));
  asio::co_spawn(impl_->io, impl_->exchange(*held), [held](const std::exception_ptr& failure, Answer answer) {
    held->done(failure ? fail(ErrorKind::kInternal, "the exchange failed with an exception") : std::move(answer));
  });
}

void Client::at(std::chrono::steady_clock::time_point time, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, time);
  timer->async_wait([timer, task = std::move(task)](const error_code&) { task(); });
}

void Client::run() {
  impl_->io.restart();
  impl_->io.run();
}

Result<api::HttpResponse> Client::fetch(Call call) {
  Answer answer;
  call.done = [&answer](Answer got) { answer = std::move(got); };
  send(std::move(call));
  run();
  return answer;
}

}  // namespace quire::net
