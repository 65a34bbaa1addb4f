// Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
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

std::string error_body(const ApiError& error);
// With Retry-After where trying again may help (429, 503) and WWW-Authenticate with 401.
HttpResponse error_response(const ApiError& error);

}  // namespace quire::api
