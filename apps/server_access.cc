#include "server_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "base/utf8.h"

namespace quire::apps {

using nlohmann::json;

Result<std::unique_ptr<net::Client>> client_of(const ServerAddress& server) {
  const bool v6 = server.host.find(':') != std::string::npos;
  auto url = net::Url::parse(!server.base_url.empty() ? server.base_url
                             : v6                     ? fmt::format("http://[{}]:{}", server.host, server.port)
                                                      : fmt::format("http://{}:{}", server.host, server.port));
  const char* flag = server.base_url.empty() ? "--host" : "--base-url";
  const auto named = [&](const Error& error) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("{}: {}", flag, error.message), flag);
  };
  if (!url) return named(url.error());
  constexpr std::string_view kVersion = "/v1";
  if (url->path.ends_with(kVersion)) url->path.resize(url->path.size() - kVersion.size());
  // An answer may wait for all that came before it.
  auto client = net::Client::to(*url, {.stall_timeout = std::chrono::hours(6)});
  if (!client) return named(client.error());
  return client;
}

Result<api::Headers> key_header() {
  const char* key = std::getenv("OPENAI_API_KEY");
  if (key == nullptr || *key == '\0') return api::Headers{};
  if (!std::ranges::all_of(std::string_view(key), [](char c) { return c > ' ' && c < 0x7f; }))
    return fail(ErrorKind::kInvalidRequest, "OPENAI_API_KEY must be visible ASCII characters", "OPENAI_API_KEY");
  return api::Headers{{"Authorization", fmt::format("Bearer {}", key)}};
}

Result<std::string> first_model(net::Client& client, const api::Headers& headers) {
  const auto answer = client.fetch({.target = "/v1/models", .headers = headers, .done = {}});
  if (!answer) return std::unexpected(answer.error());
  if (answer->status != 200)
    return fail(ErrorKind::kInvalidRequest, fmt::format("/v1/models: {}", refusal_text(*answer)));
  const json body = json::parse(answer->body, nullptr, false);
  const json::json_pointer name("/data/0/id");
  if (!body.is_object() || !body.contains(name) || !body.at(name).is_string())
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("/v1/models lists no model; --model must name one: {}", in_quotes(answer->body)),
                "--model");
  return body.at(name).get<std::string>();
}

std::string refusal_text(const api::HttpResponse& answer) {
  const json body = json::parse(answer.body, nullptr, false);
  return fmt::format("HTTP {}: {}", answer.status, body.is_discarded() ? in_quotes(answer.body) : error_text(body));
}

std::string error_text(const json& body) {
  for (const char* place : {"/error/message", "/message", "/error", "/detail"}) {
    const json::json_pointer pointer(place);
    if (body.is_object() && body.contains(pointer) && body.at(pointer).is_string())
      return one_line(body.at(pointer).get<std::string>());
  }
  return in_quotes(body.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace quire::apps
