// From a parsed request to what the engine is asked: the model's name, rendering, tokenising, the checks of length.
//
// Heavy for long prompts: it runs on a text thread. Pure but for the random seed that it is given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/backend.h"
#include "api/request.h"
#include "api/service.h"

namespace quire::api {

// How a chat's answer is taken apart.
struct AnswerFormat {
  ToolUse tool_use = {};
  bool include_reasoning = true;
  std::string prompt_end = {};  // the last bytes of the rendered chat, which may have opened the reasoning
};

// Requests of prompts.size() * n answers: answer i belongs to prompt i / n.
struct Plan {
  GenerationOptions options;
  std::string prompt_field;  // of the request, for errors
  bool echo = false;
  bool answer_wanted = true;  // false: an echo of the prompt alone, for which the engine still makes one token
  std::vector<std::vector<TokenId>> prompts = {};
  std::optional<AnswerFormat> format = {};  // of a chat; nothing: answers are content alone
  uint64_t seed = 0;
  bool seed_chosen = false;                           // by us, for a request that samples: the client is told
  std::shared_ptr<const Constraint> constraint = {};  // of all answers; null: they are free
  std::vector<std::string> ignored_fields = {};
  std::string call_key = {};  // of prompt and seed, for ids of calls: another turn of a chat has other ids

  size_t answers() const { return prompts.size() * static_cast<size_t>(options.n); }
  // That an answer may have; what the model's length allows may be less.
  int max_tokens() const;
  // The engine's request of answer i.
  Request request(size_t answer) const;
  // Null if there is nothing to look for in an answer.
  std::unique_ptr<OutputParser> new_parser(const OutputFormats& formats) const;
};

ParseLimits limits_of(const Backend& backend, const ServiceOptions& service);

Result<Plan> plan_completion(Parsed<CompletionRequest> parsed, const Backend& backend, const ServiceOptions& service,
                             uint64_t random_seed);
Result<Plan> plan_chat(Parsed<ChatRequest> parsed, const Backend& backend, const ServiceOptions& service,
                       uint64_t random_seed);

// kNotFound if `model` is given and no served name.
Result<void> check_model(const std::optional<std::string>& model, const ServiceOptions& service);
// The chat as its template renders it.
Result<std::string> render_chat(const ChatPrompt& chat, const Backend& backend);
// Text so long that it cannot fit, whatever its tokens, is refused before it costs any work; `param` is its field.
Result<void> check_size(std::string_view text, const char* param, const Backend& backend);
Result<std::vector<TokenId>> tokenize_text(std::string_view text, bool add_special, const Backend& backend);

}  // namespace quire::api
