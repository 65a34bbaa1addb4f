// Replies of /v1/messages: a message whose content is a list of blocks, or the events in which it grows.
#pragma once

#include <memory>

#include "api/reply.h"

namespace quire::api {

std::unique_ptr<Reply> messages_reply(ReplyHead head);

}  // namespace quire::api
