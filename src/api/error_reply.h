// Errors in OpenAI's shape, {"error": {"message", "type", "param", "code"}}, and under /v1/messages in Anthropic's,
// {"type": "error", "error": {"type", "message"}}.
#pragma once

#include <string>
#include <string_view>

#include "api/http.h"
#include "quire/error.h"

namespace quire::api {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the request field at fault; empty: null
  std::string code = {};   // empty: null
};

// 400 for the caller's faults, 404, 429 when exhausted, 500 for ours.
ApiError api_error(const Error& error);

std::string openai_error_body(const ApiError& error);
std::string anthropic_error_body(const ApiError& error);
// In the shape of the request's path; in OpenAI's where that is not known. With Retry-After where trying again may help
// (429, 503) and WWW-Authenticate with 401.
HttpResponse error_response(const ApiError& error, std::string_view path);

}  // namespace quire::api
