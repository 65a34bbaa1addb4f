// No body may make the request parsers crash, and what they pass on to the template must be JSON again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "api/json.h"
#include "api/pooling_request.h"
#include "api/request.h"
#include "base/check.h"

namespace {

void check(const quire::api::ChatRequest& request) {
  const quire::api::ChatPrompt& prompt = request.prompt;
  for (const std::string& text : {prompt.messages, prompt.tools, prompt.documents, prompt.kwargs}) {
    QUIRE_CHECK(text.empty() || quire::api::JsonDocument::parse(text).has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::api;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const ParseLimits limits{.vocab_size = 1000, .max_model_len = 4096, .hidden_size = 64, .max_choices = 64};
  if (const auto parsed = parse_completion(body, limits)) {
    QUIRE_CHECK(!parsed->request.prompts.empty());
    QUIRE_CHECK(parsed->request.prompts.size() * static_cast<size_t>(parsed->request.options.n) <= 64);
  }
  if (const auto parsed = parse_chat(body, limits)) check(parsed->request);
  if (const auto parsed = parse_responses(body, limits)) {
    check(parsed->request.chat);
    QUIRE_CHECK(JsonDocument::parse("{" + parsed->request.echo + "}").has_value());
  }
  if (const auto parsed = parse_messages(body, limits)) check(parsed->request);
  if (const auto parsed = parse_count_tokens(body, limits)) check(parsed->request);
  if (const auto parsed = parse_embeddings(body, limits))
    QUIRE_CHECK(!parsed->request.inputs.empty() && parsed->request.inputs.size() <= kMaxPooled);
  for (const auto& parsed : {parse_rerank(body, limits), parse_score(body, limits)}) {
    if (!parsed) continue;
    const size_t queries = parsed->request.queries.size(), documents = parsed->request.documents.size();
    QUIRE_CHECK(documents > 0 && documents <= kMaxPooled && (queries == 1 || queries == documents));
  }
  (void)parse_tokenize(body);
  (void)parse_detokenize(body, limits);
  return 0;
}
