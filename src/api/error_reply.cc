#include "api/error_reply.h"

#include "api/json_writer.h"

namespace quire::api {
namespace {

constexpr std::string_view kAnthropicPath = "/v1/messages";

bool is_anthropic(std::string_view path) {
  return path == kAnthropicPath ||
         (path.starts_with(kAnthropicPath) && path.substr(kAnthropicPath.size()).starts_with('/'));
}

std::string_view anthropic_type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidRequest:
    case ErrorKind::kUnsupported:
      return 400;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kExhausted:
      return 429;
    case ErrorKind::kCorruptFile:
    case ErrorKind::kInternal:
      break;
  }
  return 500;
}

std::string_view code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kExhausted:
      return "queue_full";
    default:
      return {};
  }
}

}  // namespace

ApiError api_error(const Error& error) {
  return {.status = status_of(error.kind),
          .message = error.message,
          .param = error.param,
          .code = std::string(code_of(error.kind))};
}

std::string openai_error_body(const ApiError& error) {
  std::string body;
  JsonWriter json(body);
  json.begin_object().key("error").begin_object();
  json.key("message").value(error.message).key("type").value(type_of(error.status));
  json.key("param").value_or_null(error.param).key("code").value_or_null(error.code);
  json.end_object().end_object();
  return body;
}

std::string anthropic_error_body(const ApiError& error) {
  std::string body;
  JsonWriter json(body);
  json.begin_object().key("type").value("error").key("error").begin_object();
  json.key("type").value(anthropic_type_of(error.status)).key("message").value(error.message);
  json.end_object().end_object();
  return body;
}

HttpResponse error_response(const ApiError& error, std::string_view path) {
  HttpResponse response{.status = error.status,
                        .body = is_anthropic(path) ? anthropic_error_body(error) : openai_error_body(error)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace quire::api
