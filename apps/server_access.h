// What the commands that are clients of a server share: how it is found, and what its errors say.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "flags.h"
#include "net/client.h"

namespace quire::apps {

// Its base URL may end with /v1, as clients of OpenAI write it, or without.
Result<std::unique_ptr<net::Client>> client_of(const ServerAddress& server);
// Authorization with the key in OPENAI_API_KEY, if there is one.
Result<api::Headers> key_header();
// Of the list of models.
Result<std::string> first_model(net::Client& client, const api::Headers& headers);

// "HTTP 429: the queue is full".
std::string refusal_text(const api::HttpResponse& answer);
// The message of an OpenAI error, or the beginning of what there is instead.
std::string error_text(const nlohmann::json& body);

}  // namespace quire::apps
