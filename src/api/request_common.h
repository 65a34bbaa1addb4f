// The fields that both kinds of completion share. Inside of request parsing only.
#pragma once

#include "api/json.h"
#include "api/request.h"

namespace quire::api {

// Reads everything of `GenerationOptions` but what the two endpoints name differently: max_tokens, logprobs.
GenerationOptions read_options(ObjectReader& in, const ParseLimits& limits);

// The chat template's part, of a chat or a tokenize request; the tools that are part of it go into `use`.
ChatPrompt read_chat_prompt(ObjectReader& in, ToolUse& use);

inline constexpr int kMaxLogprobs = 20;

}  // namespace quire::api
