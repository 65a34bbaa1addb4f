// From a body to what the engine is asked for numbers, and from the numbers to the reply's body.
//
// As an Endpoint is for answers, a PoolingEndpoint is for embeddings, rankings and scores. Heavy for long prompts: both
// ways run on a text thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/endpoint.h"
#include "api/json_writer.h"
#include "api/pooling_request.h"

namespace quire::api {

struct PoolingPlan {
  std::vector<std::vector<TokenId>> prompts = {};
  Pooling pooling = {};
  int priority = 0;
  std::string cache_salt = {};
  std::vector<std::string> ignored_fields = {};
  // The reply's body, of what each prompt's request brought.
  std::function<std::string(std::span<const std::vector<float>> pooled, const Usage& usage)> body = {};

  Request request(size_t prompt) const {
    return {.prompt = prompts[prompt], .priority = priority, .cache_salt = cache_salt, .pooling = pooling};
  }
};

struct PoolingEndpoint {
  std::string_view path;
  Result<PoolingPlan> (*ask)(std::string_view body, const AskContext& context);
};

// Null if `path` is none.
const PoolingEndpoint* find_pooling_endpoint(std::string_view path);

// The endpoints' own, in embeddings.cc and ranking.cc.
Result<PoolingPlan> ask_embeddings(std::string_view body, const AskContext& context);
Result<PoolingPlan> ask_rerank(std::string_view body, const AskContext& context);
Result<PoolingPlan> ask_score(std::string_view body, const AskContext& context);

// What they share: the plan without prompts, or kNotFound for the model's name.
Result<PoolingPlan> begin_plan(const PoolingOptions& options, std::vector<std::string> ignored_fields,
                               const AskContext& context);
// The most tokens that a prompt may have; what is beyond `truncate_prompt_tokens` is cut off.
int64_t most_tokens(const PoolingOptions& options, const AskContext& context);
// Refuses prompts that are empty or too long, one by one and all together; `field` is the request's, of a list or not.
Result<void> check_prompts(const PoolingPlan& plan, const char* field, const AskContext& context);
std::string model_name(const PoolingOptions& options, const AskContext& context);
void write_pooling_usage(JsonWriter& json, const Usage& usage);

}  // namespace quire::api
