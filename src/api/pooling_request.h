// The typed requests that ask for numbers instead of answers: embeddings, rankings and scores. Names and shapes are
// OpenAI's, Jina's and Cohere's, as vLLM serves them.
//
// As in request.h, a parsed request is complete in itself. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"

namespace quire::api {

// Inputs of one request for embeddings; documents of one ranking.
inline constexpr int kMaxPooled = 2048;

struct PoolingOptions {
  std::optional<std::string> model = {};
  std::optional<int> truncate_prompt_tokens = {};  // keep this many first ones; -1: as many as the model takes
  int priority = 0;
  std::string cache_salt = {};
};

struct EmbeddingRequest {
  PoolingOptions options;
  std::vector<Prompt> inputs;
  bool add_special_tokens = true;
  std::optional<int> dimensions = {};  // the first of each embedding
  bool base64 = false;
};

// How well documents answer queries. Document i belongs to query i, or all to the only one.
struct RankingRequest {
  PoolingOptions options;
  std::string instruction = {};  // empty: the default
  std::vector<std::string> queries;
  std::vector<std::string> documents;
  std::optional<size_t> top_n = {};  // only so many, the best
  bool return_documents = true;
};

Result<Parsed<EmbeddingRequest>> parse_embeddings(std::string_view body, const ParseLimits& limits);
Result<Parsed<RankingRequest>> parse_rerank(std::string_view body, const ParseLimits& limits);
Result<Parsed<RankingRequest>> parse_score(std::string_view body, const ParseLimits& limits);

}  // namespace quire::api
