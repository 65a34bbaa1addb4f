#include "api/endpoint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "api/messages_reply.h"
#include "api/openai_reply.h"
#include "api/responses_reply.h"

namespace quire::api {
namespace {

ReplyHead head_of(const Plan& plan, const AskContext& context) {
  return {.request_id = context.request_id,
          .created = context.now,
          .model = plan.options.model.value_or(context.service.served_model_names.front()),
          .fingerprint = context.fingerprint,
          .call_key = plan.call_key,
          .tokenizer = context.backend.tokenizer};
}

Result<Asked> ask_completion(std::string_view body, const AskContext& context) {
  auto parsed = parse_completion(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = plan_completion(std::move(*parsed), context.backend, context.service, context.random_seed);
  if (!plan) return std::unexpected(plan.error());
  auto reply = completion_reply(head_of(*plan, context), *plan);
  return Asked{std::move(*plan), std::move(reply)};
}

Result<Asked> ask_chat(std::string_view body, const AskContext& context) {
  auto parsed = parse_chat(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = plan_chat(std::move(*parsed), context.backend, context.service, context.random_seed);
  if (!plan) return std::unexpected(plan.error());
  auto reply = chat_reply(head_of(*plan, context), *plan);
  return Asked{std::move(*plan), std::move(reply)};
}

Result<Asked> ask_responses(std::string_view body, const AskContext& context) {
  auto parsed = parse_responses(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  ResponsesRequest& request = parsed->request;
  auto plan = plan_chat({std::move(request.chat), std::move(parsed->ignored_fields)}, context.backend, context.service,
                        context.random_seed);
  if (!plan) return std::unexpected(plan.error());
  auto reply = responses_reply(head_of(*plan, context), std::move(request.echo));
  return Asked{std::move(*plan), std::move(reply)};
}

Result<Asked> ask_messages(std::string_view body, const AskContext& context) {
  auto parsed = parse_messages(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = plan_chat(std::move(*parsed), context.backend, context.service, context.random_seed);
  if (!plan) return std::unexpected(plan.error());
  auto reply = messages_reply(head_of(*plan, context));
  return Asked{std::move(*plan), std::move(reply)};
}

constexpr std::array kEndpoints = {
    Endpoint{"/v1/completions", ask_completion},
    Endpoint{"/v1/chat/completions", ask_chat},
    Endpoint{"/v1/responses", ask_responses},
    Endpoint{"/v1/messages", ask_messages},
};

}  // namespace

const Endpoint* find_endpoint(std::string_view path) {
  const auto* const found = std::ranges::find(kEndpoints, path, &Endpoint::path);
  return found == kEndpoints.end() ? nullptr : found;
}

}  // namespace quire::api
