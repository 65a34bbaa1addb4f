#include "api/pooling_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace quire::api {
namespace {

constexpr std::array kEndpoints = {
    PoolingEndpoint{"/v1/embeddings", ask_embeddings},
    PoolingEndpoint{"/rerank", ask_rerank},
    PoolingEndpoint{"/v1/rerank", ask_rerank},
    PoolingEndpoint{"/v2/rerank", ask_rerank},
    PoolingEndpoint{"/score", ask_score},
    PoolingEndpoint{"/v1/score", ask_score},
};

}  // namespace

const PoolingEndpoint* find_pooling_endpoint(std::string_view path) {
  const auto* const found = std::ranges::find(kEndpoints, path, &PoolingEndpoint::path);
  return found == kEndpoints.end() ? nullptr : found;
}

Result<PoolingPlan> begin_plan(const PoolingOptions& options, std::vector<std::string> ignored_fields,
                               const AskContext& context) {
  if (auto known = check_model(options.model, context.service); !known) return std::unexpected(known.error());
  return PoolingPlan{
      .priority = options.priority, .cache_salt = options.cache_salt, .ignored_fields = std::move(ignored_fields)};
}

int64_t most_tokens(const PoolingOptions& options, const AskContext& context) {
  const int64_t longest = context.backend.info->max_model_len;
  const int64_t asked = options.truncate_prompt_tokens.value_or(-1);
  return asked < 0 ? longest : std::min<int64_t>(asked, longest);
}

Result<void> check_prompts(const PoolingPlan& plan, const char* field, const AskContext& context) {
  const int64_t longest = context.backend.info->max_model_len;
  size_t total = 0;
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    const size_t size = plan.prompts[i].size();
    total += size;
    if (size > 0 && std::cmp_less_equal(size, longest)) continue;
    const std::string message = size == 0 ? "has no tokens"
                                          : fmt::format(
                                                "makes a prompt of {} tokens, but the model's length is {}: "
                                                "truncate_prompt_tokens cuts it",
                                                size, longest);
    return fail(ErrorKind::kInvalidRequest, fmt::format("{}[{}] {}", field, i, message), field);
  }
  if (total <= context.service.max_prompt_tokens) return {};
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("one request may hold at most {} prompt tokens; this one has {}",
                          context.service.max_prompt_tokens, total),
              field);
}

std::string model_name(const PoolingOptions& options, const AskContext& context) {
  return options.model.value_or(context.service.served_model_names.front());
}

void write_pooling_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").value(usage.prompt_tokens).key("total_tokens").value(usage.prompt_tokens);
  json.key("prompt_tokens_details").begin_object().key("cached_tokens").value(usage.cached_tokens).end_object();
  json.end_object();
}

}  // namespace quire::api
