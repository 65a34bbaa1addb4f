// Replies of /v1/completions and /v1/chat/completions: OpenAI's shapes with vLLM's additions. A stream is one chunk a
// piece, then [DONE].
#pragma once

#include <memory>

#include "api/plan.h"
#include "api/reply.h"

namespace quire::api {

std::unique_ptr<Reply> completion_reply(ReplyHead head, const Plan& plan);
std::unique_ptr<Reply> chat_reply(ReplyHead head, const Plan& plan);

}  // namespace quire::api
