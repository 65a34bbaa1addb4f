#include "api/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "api/endpoint.h"
#include "api/error_reply.h"
#include "api/generation.h"
#include "api/json_writer.h"
#include "api/page.h"
#include "api/pooling_job.h"
#include "api/request.h"
#include "api/tokenization.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "text/grammar.h"

namespace quire::api {
namespace {

constexpr std::string_view kVersion = QUIRE_VERSION;

Sha256Digest digest_of(std::string_view text) { return sha256(std::as_bytes(std::span(text.data(), text.size()))); }

// Digests are compared in full, each of them, so that time tells nothing about how much of a key was right.
bool any_equal(const std::vector<Sha256Digest>& keys, const Sha256Digest& given) {
  bool any = false;
  for (const Sha256Digest& key : keys) {
    std::byte difference{0};
    for (size_t i = 0; i < key.size(); ++i) difference |= key[i] ^ given[i];
    any |= difference == std::byte{0};
  }
  return any;
}

bool is_visible_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

enum class Route {
  kPage,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kModels,
  kModel,
  kGenerate,
  kPool,
  kTokenize,
  kDetokenize,
  kCountTokens
};

struct RouteEntry {
  std::string_view path;
  std::string_view method;
  Route route;
};

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::array kRoutes = {
    RouteEntry{"/health", "GET", Route::kHealth},
    RouteEntry{"/ready", "GET", Route::kReady},
    RouteEntry{"/version", "GET", Route::kVersion},
    RouteEntry{"/metrics", "GET", Route::kMetrics},
    RouteEntry{"/v1/models", "GET", Route::kModels},
    RouteEntry{"/tokenize", "POST", Route::kTokenize},
    RouteEntry{"/v1/messages/count_tokens", "POST", Route::kCountTokens},
    RouteEntry{"/detokenize", "POST", Route::kDetokenize},
};

std::optional<RouteEntry> find_route(std::string_view path) {
  for (const RouteEntry& entry : kRoutes) {
    if (entry.path == path) return entry;
  }
  if (find_endpoint(path) != nullptr) return RouteEntry{path, "POST", Route::kGenerate};
  if (find_pooling_endpoint(path) != nullptr) return RouteEntry{path, "POST", Route::kPool};
  if (path.starts_with(kModelPrefix) && path != kModelPrefix) return RouteEntry{path, "GET", Route::kModel};
  if (find_page_file(path)) return RouteEntry{path, "GET", Route::kPage};
  return std::nullopt;
}

// A page of another site may post plain text to a server on this machine, but not JSON without asking first.
bool is_json(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return type.substr(0, type.find_last_not_of(' ') + 1) == "application/json";
}

// Whether the body comes as it is, not compressed.
bool is_plain(const Headers& headers) {
  return std::ranges::none_of(headers, [](const auto& header) {
    std::string coding = header.second;
    std::ranges::transform(coding, coding.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return header.first == "content-encoding" && !coding.empty() && coding != "identity";
  });
}

std::vector<TokenId> marker_tokens(const Backend& backend) {
  std::vector<TokenId> ids;
  if (backend.tokenizer == nullptr) return ids;
  for (const std::string_view marker : markers_of(backend.formats))
    if (const auto id = backend.tokenizer->find(marker)) ids.push_back(*id);
  return ids;
}

}  // namespace

uint64_t random_64_bits() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class Service::Impl {
 public:
  explicit Impl(ServiceOptions options) : options_(std::move(options)), pool_(options_.text_threads) {
    for (const std::string& key : options_.api_keys) key_digests_.push_back(digest_of(key));
  }

  void open(Backend backend) {
    backend_ = std::move(backend);
    metrics_.emplace(backend_.info->max_model_len);
    // Another grammar engine may let other tokens through.
    std::string digests =
        fmt::format("{}/{}/{}", backend_.info->fingerprint, backend_.text_digest, text::grammar_engine());
    const std::string defaults = describe(options_.sampling_defaults);
    if (!defaults.empty()) digests += "/" + defaults;
    digests += describe(backend_.formats);
    context_.emplace(GenerationContext{options_, backend_, *metrics_, pool_,
                                       "quire-" + hex(digest_of(digests)).substr(0, 32), marker_tokens(backend_)});
    open_.store(true, std::memory_order_release);
  }
  void close() { pool_.stop(); }

  std::optional<HttpResponse> admit(const HttpRequest& head);
  void handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange);

 private:
  bool is_open() const { return open_.load(std::memory_order_acquire); }
  std::string request_id(const HttpRequest& request) const;
  bool has_key(const HttpRequest& head) const;
  HttpResponse answer(const RouteEntry& entry, const HttpRequest& request);
  HttpResponse models() const;
  HttpResponse model(std::string_view name) const;
  void write_model(JsonWriter& json, const std::string& name) const;
  using TextReply = Result<std::string>(std::string_view body, const Backend& backend, const ServiceOptions& service);
  void answer_on_text_thread(TextReply* reply, HttpRequest request, const std::shared_ptr<Exchange>& exchange);

  const ServiceOptions options_;
  std::vector<Sha256Digest> key_digests_;
  const int64_t created_ = static_cast<int64_t>(std::time(nullptr));
  // Set by open() before open_ is true, then read only.
  Backend backend_;
  std::optional<Metrics> metrics_;
  std::optional<GenerationContext> context_;
  std::atomic<bool> open_ = false;
  WorkerPool pool_;  // last, so that its threads end before what they use
};

std::optional<HttpResponse> Service::Impl::admit(const HttpRequest& head) {
  const auto refuse = [&](const ApiError& error) { return error_response(error, head.path); };
  const auto entry = find_route(head.path);
  if (!entry) {
    return refuse(
        {.status = 404, .message = fmt::format("there is no {} here", in_quotes(head.path)), .code = "not_found"});
  }
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if (entry->method == "GET" ? !reads : head.method != entry->method) {
    HttpResponse response = refuse({.status = 405,
                                    .message = fmt::format("{} takes {} only", entry->path, entry->method),
                                    .code = "method_not_allowed"});
    response.headers.emplace_back("Allow", entry->method);
    return response;
  }
  const bool for_all = entry->route == Route::kPage || entry->route == Route::kHealth ||
                       entry->route == Route::kReady || entry->route == Route::kVersion ||
                       entry->route == Route::kMetrics;
  if (!for_all && !has_key(head)) {
    return refuse({.status = 401,
                   .message = "this server asks for an API key, as \"Authorization: Bearer KEY\" or \"X-API-Key: KEY\"",
                   .code = "invalid_api_key"});
  }
  if (!is_open() && entry->route != Route::kPage && entry->route != Route::kVersion)
    return refuse({.status = 503, .message = "the model is being loaded", .code = "loading"});
  if (entry->method == "POST" && !is_json(head.header("content-type"))) {
    return refuse({.status = 415,
                   .message = "the Content-Type of a request must be application/json",
                   .code = "unsupported_media_type"});
  }
  if (entry->method == "POST" && !is_plain(head.headers)) {
    return refuse({.status = 415,
                   .message = "the body must not be compressed: the only Content-Encoding is identity",
                   .code = "unsupported_media_type"});
  }
  return std::nullopt;
}

// Or needs none.
bool Service::Impl::has_key(const HttpRequest& head) const {
  if (key_digests_.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view authorization = head.header("authorization"), key = head.header("x-api-key");
  const bool bears_it =
      authorization.starts_with(kBearer) && any_equal(key_digests_, digest_of(authorization.substr(kBearer.size())));
  return bears_it || (!key.empty() && any_equal(key_digests_, digest_of(key)));
}

std::string Service::Impl::request_id(const HttpRequest& request) const {
  constexpr size_t kLongest = 128;
  const std::string_view given = request.header("x-request-id");
  if (!given.empty() && given.size() <= kLongest && is_visible_ascii(given)) return std::string(given);
  return fmt::format("{:016x}{:016x}", options_.random(), options_.random());
}

void Service::Impl::handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  const auto entry = find_route(request.path);
  switch (entry->route) {
    case Route::kGenerate: {
      const auto generation =
          std::make_shared<Generation>(*context_, exchange, request_id(request), *find_endpoint(request.path));
      return generation->begin(std::move(request));
    }
    case Route::kPool: {
      const auto job =
          std::make_shared<PoolingJob>(*context_, exchange, request_id(request), *find_pooling_endpoint(request.path));
      return job->begin(std::move(request));
    }
    case Route::kTokenize:
      return answer_on_text_thread(tokenize_reply, std::move(request), exchange);
    case Route::kDetokenize:
      return answer_on_text_thread(detokenize_reply, std::move(request), exchange);
    case Route::kCountTokens:
      return answer_on_text_thread(count_tokens_reply, std::move(request), exchange);
    default:
      return exchange->respond(answer(*entry, request));
  }
}

HttpResponse Service::Impl::answer(const RouteEntry& entry, const HttpRequest& request) {
  switch (entry.route) {
    case Route::kPage:
      return *find_page_file(request.path);
    case Route::kMetrics:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = metrics_->text(options_.served_model_names.front(), *backend_.info, backend_.stats())};
    case Route::kVersion:
      return {.body = fmt::format("{{\"version\":\"{}\"}}", kVersion)};
    case Route::kModels:
      return models();
    case Route::kModel:
      return model(std::string_view(request.path).substr(kModelPrefix.size()));
    default:
      return {.body = "{\"status\":\"ok\"}"};
  }
}

void Service::Impl::write_model(JsonWriter& json, const std::string& name) const {
  json.begin_object().key("id").value(name).key("object").value("model").key("created").value(created_);
  json.key("owned_by").value("quire").key("root").value(options_.served_model_names.front()).key("parent").null();
  json.key("max_model_len").value(backend_.info->max_model_len).end_object();
}

HttpResponse Service::Impl::models() const {
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().key("object").value("list").key("data").begin_array();
  for (const std::string& name : options_.served_model_names) write_model(json, name);
  json.end_array().end_object();
  return response;
}

HttpResponse Service::Impl::model(std::string_view name) const {
  if (auto known = check_model(std::string(name), options_); !known)
    return error_response(api_error(known.error()), kModelPrefix);
  HttpResponse response;
  JsonWriter json(response.body);
  write_model(json, std::string(name));
  return response;
}

void Service::Impl::answer_on_text_thread(TextReply* reply, HttpRequest request,
                                          const std::shared_ptr<Exchange>& exchange) {
  pool_.submit([this, reply, request = std::move(request), exchange] {
    HttpResponse response;
    try {
      auto body = reply(request.body, backend_, options_);
      if (body) {
        response.body = std::move(*body);
      } else {
        response = error_response(api_error(body.error()), request.path);
      }
    } catch (const std::exception& failure) {
      response = error_response({.status = 500, .message = failure.what()}, request.path);
    }
    exchange->post([exchange, response = std::move(response)]() mutable { exchange->respond(std::move(response)); });
  });
}

Service::Service(ServiceOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Service::~Service() = default;

void Service::open(Backend backend) { impl_->open(std::move(backend)); }
void Service::close() { impl_->close(); }

Handler Service::handler() {
  return {.admit = [impl = impl_.get()](const HttpRequest& head) { return impl->admit(head); },
          .handle = [impl = impl_.get()](
                        HttpRequest request,
                        std::shared_ptr<Exchange> exchange) { impl->handle(std::move(request), exchange); }};
}

}  // namespace quire::api
