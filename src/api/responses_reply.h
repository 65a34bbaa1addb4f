// Replies of /v1/responses: a response object whose output is a list of items, or the typed events in which it grows.
#pragma once

#include <memory>
#include <string>

#include "api/reply.h"

namespace quire::api {

// `echo` are the members of the object that repeat the request, JSON.
std::unique_ptr<Reply> responses_reply(ReplyHead head, std::string echo);

}  // namespace quire::api
