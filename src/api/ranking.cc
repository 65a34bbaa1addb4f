// How well a document answers a query: the probability of "yes", and not "no", behind the prompt that Qwen3-Reranker
// was trained with. Nothing in a checkpoint tells it from its chat siblings: every model whose tokenizer knows what the
// prompt is made of ranks, as well as it can.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/pooling_plan.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace quire::api {
namespace {

constexpr std::string_view kBefore =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
constexpr std::string_view kBehind = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
constexpr std::string_view kInstruction = "Given a web search query, retrieve relevant passages that answer the query";

// The prompt's fixed ends, and the tokens that are looked for behind it.
struct Reranker {
  std::vector<TokenId> before = {};
  std::vector<TokenId> behind = {};
  TokenId yes = 0;
  TokenId no = 0;
};

Result<Reranker> reranker_of(const Backend& backend) {
  if (backend.tokenizer == nullptr)
    return fail(ErrorKind::kUnsupported, "this model cannot rank: it has no tokenizer", "model");
  for (const std::string_view name : {"<|im_start|>", "<|im_end|>", "yes", "no"}) {
    if (backend.tokenizer->find(name)) continue;
    return fail(ErrorKind::kUnsupported,
                fmt::format("this model cannot rank: its tokenizer has no token {}, which is part of "
                            "Qwen3-Reranker's prompt or answers",
                            in_quotes(name)),
                "model");
  }
  Reranker reranker{.yes = *backend.tokenizer->find("yes"), .no = *backend.tokenizer->find("no")};
  auto before = tokenize_text(kBefore, false, backend);
  if (!before) return std::unexpected(before.error());
  auto behind = tokenize_text(kBehind, false, backend);
  if (!behind) return std::unexpected(behind.error());
  reranker.before = std::move(*before);
  reranker.behind = std::move(*behind);
  return reranker;
}

constexpr size_t kMostBytes = 16 << 20;  // of all texts of a request

// Query and document are text alone: what is spelled like a special token in them is none, so that no document can
// answer for the model. Where the prompt is too long, the document loses its end.
Result<std::vector<TokenId>> prompt_of(const Reranker& reranker, const std::string& content,
                                       const PoolingOptions& options, const AskContext& context) {
  if (!options.truncate_prompt_tokens) {
    if (auto fits = check_size(content, "documents", context.backend); !fits) return std::unexpected(fits.error());
  }
  auto ids = context.backend.tokenizer->encode(content, {.add_special = false});
  if (!ids) return std::unexpected(ids.error());
  const size_t fixed = reranker.before.size() + reranker.behind.size();
  if (options.truncate_prompt_tokens) {
    const auto most = static_cast<size_t>(most_tokens(options, context));
    if (most <= fixed) {
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("truncate_prompt_tokens must be at least {}: so many tokens the prompt has around its "
                              "texts, and one",
                              fixed + 1),
                  "truncate_prompt_tokens");
    }
    ids->resize(std::min(ids->size(), most - fixed));
  }
  ids->insert(ids->begin(), reranker.before.begin(), reranker.before.end());
  ids->insert(ids->end(), reranker.behind.begin(), reranker.behind.end());
  return ids;
}

Result<PoolingPlan> plan_ranking(const RankingRequest& request, std::vector<std::string> ignored_fields,
                                 const char* field, const AskContext& context) {
  auto plan = begin_plan(request.options, std::move(ignored_fields), context);
  if (!plan) return plan;
  const auto reranker = reranker_of(context.backend);
  if (!reranker) return std::unexpected(reranker.error());
  plan->pooling.probabilities_of = {reranker->yes, reranker->no};
  const std::string_view instruction = request.instruction.empty() ? kInstruction : request.instruction;
  size_t bytes = 0;
  for (size_t i = 0; i < request.documents.size(); ++i) {
    const std::string& query = request.queries[request.queries.size() == 1 ? 0 : i];
    if (query.starts_with("<|im_start|>")) {
      return fail(ErrorKind::kInvalidRequest,
                  "a query must be the plain question: the prompt around it, from <|im_start|> on, is written here",
                  "query");
    }
    const std::string content =
        fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", instruction, query, request.documents[i]);
    // The query stands before every document, so all together may be far more than the body.
    bytes += content.size();
    if (bytes > kMostBytes) {
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("{}: with the query before each, the first {} have more than {} bytes together", field,
                              i + 1, kMostBytes),
                  field);
    }
    auto ids = prompt_of(*reranker, content, request.options, context);
    if (!ids) return std::unexpected(ids.error());
    plan->prompts.push_back(std::move(*ids));
  }
  if (auto fits = check_prompts(*plan, field, context); !fits) return std::unexpected(fits.error());
  return plan;
}

// The documents' places, the best first; of equal ones the first.
std::vector<size_t> order_of(std::span<const std::vector<float>> scores, size_t most) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(-scores[i].front(), i); });
  order.resize(std::min(order.size(), most));
  return order;
}

}  // namespace

Result<PoolingPlan> ask_rerank(std::string_view body, const AskContext& context) {
  auto parsed = parse_rerank(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = plan_ranking(parsed->request, std::move(parsed->ignored_fields), "documents", context);
  if (!plan) return plan;
  plan->body = [id = "rerank-" + context.request_id, model = model_name(parsed->request.options, context),
                request = std::move(parsed->request)](std::span<const std::vector<float>> scores, const Usage& usage) {
    std::string body;
    JsonWriter json(body);
    json.begin_object().key("id").value(id).key("model").value(model);
    write_pooling_usage(json, usage);
    json.key("results").begin_array();
    for (const size_t i : order_of(scores, request.top_n.value_or(scores.size()))) {
      json.begin_object().key("index").value(i);
      if (request.return_documents)
        json.key("document").begin_object().key("text").value(request.documents[i]).end_object();
      json.key("relevance_score").value(scores[i].front()).end_object();
    }
    json.end_array().end_object();
    return body;
  };
  return plan;
}

Result<PoolingPlan> ask_score(std::string_view body, const AskContext& context) {
  auto parsed = parse_score(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  auto plan = plan_ranking(parsed->request, std::move(parsed->ignored_fields), "text_2", context);
  if (!plan) return plan;
  plan->body = [id = "score-" + context.request_id, model = model_name(parsed->request.options, context),
                created = context.now](std::span<const std::vector<float>> scores, const Usage& usage) {
    std::string body;
    JsonWriter json(body);
    json.begin_object().key("id").value(id).key("object").value("list").key("created").value(created);
    json.key("model").value(model).key("data").begin_array();
    for (size_t i = 0; i < scores.size(); ++i) {
      json.begin_object().key("index").value(i).key("object").value("score");
      json.key("score").value(scores[i].front()).end_object();
    }
    json.end_array();
    write_pooling_usage(json, usage);
    json.end_object();
    return body;
  };
  return plan;
}

}  // namespace quire::api
