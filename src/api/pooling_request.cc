#include "api/pooling_request.h"

#include <fmt/format.h>

#include <limits>

#include "api/request_common.h"

namespace quire::api {
namespace {

PoolingOptions read_pooling_options(ObjectReader& in, const ParseLimits& limits) {
  PoolingOptions options{.model = in.string("model"),
                         .truncate_prompt_tokens = read_truncation(in, limits),
                         .priority = read_priority(in),
                         .cache_salt = read_cache_salt(in)};
  in.string("user");
  return options;
}

bool read_base64(ObjectReader& in) {
  const std::string format = in.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    in.fail("encoding_format", "encoding_format must be float or base64", ErrorKind::kInvalidRequest);
  return format == "base64";
}

// A text, as it is or in an object.
std::optional<std::string> text_of(Json value) {
  if (value.is_object()) {
    ObjectReader in(value, "");
    return in.string("text");
  }
  if (!value.is_string()) return {};
  return std::string(std::string_view(value));
}

// Texts: a list of them or, where `or_one`, a single one.
std::vector<std::string> read_texts(ObjectReader& in, const char* name, bool or_one) {
  std::vector<std::string> texts;
  const auto refuse = [&](std::string message) {
    in.fail(name, std::move(message));
    return std::vector<std::string>{};
  };
  const auto value = in.any(name);
  if (!value) return refuse(fmt::format("{} is missing", name));
  if (or_one) {
    if (auto text = text_of(*value)) return {std::move(*text)};
  }
  if (!value->is_array()) return refuse(fmt::format("{} must be a list of texts, not {}", name, shown(*value)));
  const simdjson::dom::array list(*value);
  if (list.size() == 0) return refuse(fmt::format("{} must not be an empty list", name));
  if (list.size() > kMaxPooled)
    return refuse(fmt::format("{} may hold at most {} texts, not {}", name, kMaxPooled, list.size()));
  for (const Json item : list) {
    auto text = text_of(item);
    if (!text) {
      return refuse(fmt::format("{}[{}] must be a string or an object with a string \"text\", not {}", name,
                                texts.size(), shown(item)));
    }
    texts.push_back(std::move(*text));
  }
  return texts;
}

template <class T>
Result<Parsed<T>> parsed_or_failure(T request, const ObjectReader& in) {
  if (in.failure()) return std::unexpected(*in.failure());
  return Parsed<T>{std::move(request), in.unread()};
}

}  // namespace

Result<Parsed<EmbeddingRequest>> parse_embeddings(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  ParseLimits of_inputs = limits;
  of_inputs.max_choices = kMaxPooled;
  EmbeddingRequest request{.options = read_pooling_options(in, limits),
                           .inputs = read_prompts(in, "input", of_inputs),
                           .add_special_tokens = in.boolean("add_special_tokens").value_or(true),
                           .base64 = read_base64(in)};
  if (const auto count = in.integer("dimensions", 1, limits.hidden_size)) request.dimensions = static_cast<int>(*count);
  // Ignoring them would give other numbers than were asked for.
  if (!in.boolean("normalize").value_or(true) || !in.boolean("use_activation").value_or(true))
    in.fail("normalize", "embeddings have a length of 1 here: normalize may not be false", ErrorKind::kUnsupported);
  for (const char* name : {"messages", "embed_dtype", "endianness", "mm_processor_kwargs"}) in.unsupported(name);
  return parsed_or_failure(std::move(request), in);
}

Result<Parsed<RankingRequest>> parse_rerank(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  RankingRequest request{.options = read_pooling_options(in, limits),
                         .instruction = in.string("instruction").value_or(""),
                         .queries = {in.string("query").value_or("")},
                         .documents = read_texts(in, "documents", false),
                         .return_documents = in.boolean("return_documents").value_or(true)};
  if (!in.any("query")) in.fail("query", "query is missing");
  // 0 is vLLM's word for all.
  const auto top_n = in.integer("top_n", 0, std::numeric_limits<int32_t>::max());
  if (top_n && *top_n > 0) request.top_n = static_cast<size_t>(*top_n);
  for (const char* name : {"rank_fields", "max_tokens_per_doc", "max_chunks_per_doc"}) in.unsupported(name);
  return parsed_or_failure(std::move(request), in);
}

Result<Parsed<RankingRequest>> parse_score(std::string_view body, const ParseLimits& limits) {
  const auto document = JsonDocument::parse(body);
  if (!document) return std::unexpected(document.error());
  ObjectReader in(document->root(), "");
  RankingRequest request{.options = read_pooling_options(in, limits),
                         .instruction = in.string("instruction").value_or(""),
                         .queries = read_texts(in, "text_1", true),
                         .documents = read_texts(in, "text_2", true)};
  const size_t queries = request.queries.size(), documents = request.documents.size();
  if (queries != 1 && queries != documents) {
    in.fail("text_1", fmt::format("text_1 must hold one text, or as many as text_2: it holds {}, and text_2 {}",
                                  queries, documents));
  }
  return parsed_or_failure(std::move(request), in);
}

}  // namespace quire::api
