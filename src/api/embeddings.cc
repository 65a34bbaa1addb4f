// The embedding of a text is the final hidden state of its last token, scaled to a length of 1.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "api/pooling_plan.h"

namespace quire::api {
namespace {

// Numbers that one reply may hold: some 100 MiB of text.
constexpr int64_t kMaxNumbers = int64_t{8} << 20;

constexpr const char* kField = "input";

// Cuts the text's last tokens off. What the tokenizer puts around a text stays: models that are made for embeddings
// read the end token that it puts behind.
Result<std::vector<TokenId>> cut(std::vector<TokenId> whole, const std::string& text, size_t most,
                                 const Backend& backend) {
  const auto plain = tokenize_text(text, false, backend);
  if (!plain) return std::unexpected(plain.error());
  const size_t added = whole.size() - std::min(whole.size(), plain->size());
  if (most <= added) {
    return fail(
        ErrorKind::kInvalidRequest,
        fmt::format("truncate_prompt_tokens must be at least {}: the tokenizer adds {} tokens", added + 1, added),
        "truncate_prompt_tokens");
  }
  size_t before = 0;
  while (before < added && !std::ranges::equal(*plain, std::span(whole).subspan(before, plain->size()))) ++before;
  const size_t behind = added - before;
  std::copy(whole.end() - static_cast<std::ptrdiff_t>(behind), whole.end(),
            whole.begin() + static_cast<std::ptrdiff_t>(most - behind));
  whole.resize(most);
  return whole;
}

Result<std::vector<TokenId>> tokens_of(const Prompt& input, const EmbeddingRequest& request,
                                       const AskContext& context) {
  const auto most = static_cast<size_t>(most_tokens(request.options, context));
  const bool cuts = request.options.truncate_prompt_tokens.has_value();
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&input)) {
    if (!cuts || ids->size() <= most) return *ids;
    return std::vector<TokenId>(ids->begin(), ids->begin() + static_cast<std::ptrdiff_t>(most));
  }
  const Backend& backend = context.backend;
  if (backend.tokenizer == nullptr)
    return fail(ErrorKind::kUnsupported, "this model has no tokenizer: give the input as token ids", kField);
  const std::string& text = std::get<std::string>(input);
  if (!cuts) {
    if (auto fits = check_size(text, kField, backend); !fits) return std::unexpected(fits.error());
  }
  auto whole = tokenize_text(text, request.add_special_tokens, backend);
  if (!whole) return fail(whole.error().kind, whole.error().message, kField);
  if (!cuts || whole->size() <= most) return whole;
  return cut(std::move(*whole), text, most, backend);
}

// The first `dimensions` numbers, scaled to a length of 1; zeros stay zeros.
std::vector<float> unit(std::span<const float> state, size_t dimensions) {
  state = state.first(std::min(dimensions, state.size()));
  double sum = 0;
  for (const float x : state) sum += static_cast<double>(x) * static_cast<double>(x);
  const double length = sum > 0 ? std::sqrt(sum) : 1;
  std::vector<float> out;
  for (const float x : state) out.push_back(static_cast<float>(static_cast<double>(x) / length));
  return out;
}

// As floats of 32 bits, the least significant byte first.
std::string base64(std::span<const float> numbers) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes, out;
  for (const float x : numbers)
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(std::bit_cast<uint32_t>(x) >> shift & 0xff);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

struct Head {
  std::string id, model;
  int64_t created = 0;
  size_t dimensions = 0;
  bool base64 = false;
};

std::string embeddings_body(const Head& head, std::span<const std::vector<float>> states, const Usage& usage) {
  std::string body;
  JsonWriter json(body);
  json.begin_object().key("id").value(head.id).key("object").value("list").key("created").value(head.created);
  json.key("model").value(head.model).key("data").begin_array();
  for (size_t i = 0; i < states.size(); ++i) {
    const std::vector<float> embedding = unit(states[i], head.dimensions);
    json.begin_object().key("index").value(i).key("object").value("embedding").key("embedding");
    if (head.base64) {
      json.value(base64(embedding));
    } else {
      json.begin_array();
      for (const float x : embedding) json.value(x);
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
  write_pooling_usage(json, usage);
  json.end_object();
  return body;
}

}  // namespace

Result<PoolingPlan> ask_embeddings(std::string_view body, const AskContext& context) {
  auto parsed = parse_embeddings(body, limits_of(context.backend, context.service));
  if (!parsed) return std::unexpected(parsed.error());
  const EmbeddingRequest& request = parsed->request;
  auto plan = begin_plan(request.options, std::move(parsed->ignored_fields), context);
  if (!plan) return plan;
  const int64_t hidden = context.backend.info->hidden_size;
  const int64_t most = kMaxNumbers / std::max<int64_t>(request.dimensions.value_or(static_cast<int>(hidden)), 1);
  if (std::cmp_greater(request.inputs.size(), most)) {
    return fail(
        ErrorKind::kInvalidRequest,
        fmt::format("input may hold at most {} texts with so many dimensions, not {}", most, request.inputs.size()),
        kField);
  }
  for (const Prompt& input : request.inputs) {
    auto ids = tokens_of(input, request, context);
    if (!ids) return std::unexpected(ids.error());
    plan->prompts.push_back(std::move(*ids));
  }
  if (auto fits = check_prompts(*plan, kField, context); !fits) return std::unexpected(fits.error());
  plan->body = [head = Head{.id = "embd-" + context.request_id,
                            .model = model_name(request.options, context),
                            .created = context.now,
                            .dimensions = static_cast<size_t>(request.dimensions.value_or(static_cast<int>(hidden))),
                            .base64 = request.base64}](std::span<const std::vector<float>> states, const Usage& usage) {
    return embeddings_body(head, states, usage);
  };
  return plan;
}

}  // namespace quire::api
