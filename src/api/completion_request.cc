#include <fmt/format.h>

#include <limits>

#include "api/request_common.h"

namespace quire::api {
Result<Parsed<CompletionRequest>> parse_completion(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  CompletionRequest request{.options = read_options(in, limits), .prompts = read_prompts(in, "prompt", limits)};
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
