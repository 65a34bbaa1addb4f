// The fields that several endpoints share. Inside of request parsing only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/json.h"
#include "api/request.h"

namespace quire::api {

// What is the same for all: the model, how tokens are chosen, stream, and this server's and vLLM's own fields.
GenerationOptions read_shared_options(ObjectReader& in, const ParseLimits& limits);
// What /v1/completions and chats share: everything of `GenerationOptions` but max_tokens and logprobs.
GenerationOptions read_options(ObjectReader& in, const ParseLimits& limits);
// The stop strings in the field `name`.
void read_stops(ObjectReader& in, std::string_view name, GenerationOptions& options);
// max_tokens of a chat, under another name, and where it is not given.
void read_max_tokens(ObjectReader& in, const char* name, const ParseLimits& limits, GenerationOptions& options);

// The chat template's part, of a chat or a tokenize request; the tools that are part of it go into `use`.
ChatPrompt read_chat_prompt(ObjectReader& in, ToolUse& use);
// The effort that a reasoning model should make; empty if nothing is said.
std::string read_effort(ObjectReader& in, const char* name);

// A string, or a list of strings, of ids, or of lists of ids: up to limits.max_choices prompts.
std::vector<Prompt> read_prompts(ObjectReader& in, std::string_view field, const ParseLimits& limits);
std::optional<int> read_truncation(ObjectReader& in, const ParseLimits& limits);
int read_priority(ObjectReader& in);
std::string read_cache_salt(ObjectReader& in);

inline constexpr int kMaxLogprobs = 20;

}  // namespace quire::api
