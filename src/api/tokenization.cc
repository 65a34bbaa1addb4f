#include "api/tokenization.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "api/json_writer.h"
#include "api/plan.h"
#include "api/request.h"

namespace quire::api {
namespace {

constexpr size_t kDetokenizedInAnyCase = 1 << 16;  // ids, however short the model's length

}  // namespace

Result<std::string> tokenize_reply(std::string_view body, const Backend& backend, const ServiceOptions& service) {
  const auto parsed = parse_tokenize(body);
  if (!parsed) return std::unexpected(parsed.error());
  const TokenizeRequest& request = parsed->request;
  if (auto known = check_model(request.model, service); !known) return std::unexpected(known.error());
  if (request.text) {
    if (auto fits = check_size(*request.text, "prompt", backend); !fits) return std::unexpected(fits.error());
  }
  const auto text = request.chat ? render_chat(*request.chat, backend) : *request.text;
  if (!text) return std::unexpected(text.error());
  const auto ids =
      tokenize_text(*text, request.chat ? request.chat->add_special_tokens : request.add_special_tokens, backend);
  if (!ids) return std::unexpected(ids.error());
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("count").value(ids->size()).key("max_model_len").value(backend.info->max_model_len);
  json.key("tokens").begin_array();
  for (const TokenId id : *ids) json.value(id);
  json.end_array().key("token_strs");
  if (request.return_token_strs) {
    json.begin_array();
    for (const TokenId id : *ids) json.value(backend.tokenizer->name(id));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return out;
}

Result<std::string> detokenize_reply(std::string_view body, const Backend& backend, const ServiceOptions& service) {
  const auto parsed = parse_detokenize(body, {.vocab_size = backend.info->vocab_size});
  if (!parsed) return std::unexpected(parsed.error());
  if (auto known = check_model(parsed->request.model, service); !known) return std::unexpected(known.error());
  if (backend.tokenizer == nullptr) return fail(ErrorKind::kUnsupported, "this model has no tokenizer");
  const std::vector<TokenId>& tokens = parsed->request.tokens;
  const size_t most = std::max(kDetokenizedInAnyCase, static_cast<size_t>(backend.info->max_model_len));
  if (tokens.size() > most) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("tokens may hold at most {} ids, not {}", most, tokens.size()),
                "tokens");
  }
  const auto text = backend.tokenizer->decode(tokens, false);
  if (!text) return std::unexpected(text.error());
  std::string out;
  JsonWriter(out).begin_object().key("prompt").value(*text).end_object();
  return out;
}

Result<std::string> count_tokens_reply(std::string_view body, const Backend& backend, const ServiceOptions& service) {
  const auto parsed = parse_count_tokens(body, limits_of(backend, service));
  if (!parsed) return std::unexpected(parsed.error());
  const ChatRequest& request = parsed->request;
  if (auto known = check_model(request.options.model, service); !known) return std::unexpected(known.error());
  const auto text = render_chat(request.prompt, backend);
  if (!text) return std::unexpected(text.error());
  const auto ids = tokenize_text(*text, request.prompt.add_special_tokens, backend);
  if (!ids) return std::unexpected(ids.error());
  std::string out;
  JsonWriter(out).begin_object().key("input_tokens").value(ids->size()).end_object();
  return out;
}

}  // namespace quire::api
