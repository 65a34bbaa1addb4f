#include <fmt/format.h>

#include <limits>

#include "api/request_common.h"

namespace quire::api {
namespace {

// A list of strings, of ids, or of lists of ids.
std::vector<Prompt> read_prompt_list(ObjectReader& in, Json value, const ParseLimits& limits) {
  const simdjson::dom::array list(value);
  std::vector<Prompt> prompts;
  const auto refuse = [&](std::string message) {
    in.fail("prompt", std::move(message));
    return std::vector<Prompt>{};
  };
  if (list.size() == 0) return refuse("prompt must not be an empty list");
  const Json first = *list.begin();
  if (!first.is_string() && !first.is_array()) {
    auto ids = read_token_ids(value, "prompt", limits.vocab_size);
    if (!ids) return refuse(ids.error().message);
    prompts.emplace_back(std::move(*ids));
    return prompts;
  }
  if (list.size() > static_cast<size_t>(limits.max_choices)) {
    return refuse(fmt::format("prompt may hold at most {} prompts, not {}", limits.max_choices, list.size()));
  }
  for (const Json item : list) {
    if (first.is_string() && item.is_string()) {
      prompts.emplace_back(std::string(std::string_view(item)));
      continue;
    }
    const std::string name = fmt::format("prompt[{}]", prompts.size());
    if (first.is_string()) return refuse(fmt::format("{} must be a string like the others, not {}", name, shown(item)));
    auto ids = read_token_ids(item, name, limits.vocab_size);
    if (!ids) return refuse(ids.error().message);
    prompts.emplace_back(std::move(*ids));
  }
  return prompts;
}

std::vector<Prompt> read_prompts(ObjectReader& in, const ParseLimits& limits) {
  const auto value = in.any("prompt");
  if (!value) {
    in.fail("prompt", "prompt is missing");
    return {};
  }
  std::vector<Prompt> prompts;
  if (value->is_string()) {
    prompts.emplace_back(std::string(std::string_view(*value)));
  } else if (value->is_array()) {
    prompts = read_prompt_list(in, *value, limits);
  } else {
    in.fail("prompt",
            fmt::format("prompt must be a string, a list of strings, a list of token ids or a list of those, not {}",
                        shown(*value)));
  }
  return prompts;
}

}  // namespace

Result<Parsed<CompletionRequest>> parse_completion(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  CompletionRequest request{.options = read_options(in, limits), .prompts = read_prompts(in, limits)};
  GenerationOptions& options = request.options;
  request.echo = in.boolean("echo").value_or(false);
  request.add_special_tokens = in.boolean("add_special_tokens").value_or(true);
  if (const auto count = in.integer("logprobs", 0, kMaxLogprobs)) options.sampling.logprobs = static_cast<int>(*count);
  // With echo, 0 asks for the prompt alone.
  if (const auto most = in.integer("max_tokens", request.echo ? 0 : 1, std::numeric_limits<int>::max())) {
    options.max_tokens = static_cast<int>(*most);
  }
  if (options.sampling.min_tokens > options.max_tokens.value_or(options.default_max_tokens)) {
    in.fail("min_tokens", "min_tokens must not be greater than max_tokens");
  }
  in.unsupported("suffix");
  if (request.prompts.size() * static_cast<size_t>(options.n) > static_cast<size_t>(limits.max_choices)) {
    in.fail("n", fmt::format("one request may ask for at most {} answers: prompts times n", limits.max_choices));
  }
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<CompletionRequest>{std::move(request), in.unread()};
}

}  // namespace quire::api
