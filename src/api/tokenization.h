// Replies that are about tokens alone: /tokenize, /detokenize and /v1/messages/count_tokens. From a body to a body; any
// text thread.
#pragma once

#include <string>
#include <string_view>

#include "api/backend.h"
#include "api/service.h"

namespace quire::api {

Result<std::string> tokenize_reply(std::string_view body, const Backend& backend, const ServiceOptions& service);
Result<std::string> detokenize_reply(std::string_view body, const Backend& backend, const ServiceOptions& service);
// Of a message's request: the tokens of its prompt.
Result<std::string> count_tokens_reply(std::string_view body, const Backend& backend, const ServiceOptions& service);

}  // namespace quire::api
