#include "api/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "api/json_writer.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quire::api {
namespace {

// Bytes of text that one token stands for at the very most.
constexpr size_t kLongestPiece = 256;
// Of a rendered chat, to see whether it opens the answer's reasoning.
constexpr size_t kPromptEnd = 64;
// Bytes that are tokenised in any case, so that an error can say how many tokens they are.
constexpr size_t kQuicklyDone = 1 << 20;

std::unexpected<Error> invalid(std::string message, std::string param) {
  return fail(ErrorKind::kInvalidRequest, std::move(message), std::move(param));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// What the template gets: the options by their names, and the caller's own beside them.
std::string template_options(const ChatPrompt& chat) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.key("add_generation_prompt").value(chat.add_generation_prompt);
  if (!chat.tools.empty()) json.key("tools").raw(chat.tools);
  if (!chat.documents.empty()) json.key("documents").raw(chat.documents);
  if (!chat.reasoning_effort.empty()) json.key("reasoning_effort").value(chat.reasoning_effort);
  if (chat.kwargs.size() > 2) json.raw(std::string_view(chat.kwargs).substr(1, chat.kwargs.size() - 2));
  json.end_object();
  return text;
}

// Cuts the rendered chat behind its last message, so that the model goes on with it.
Result<std::string> without_end(std::string rendered, const ChatPrompt& chat) {
  const std::string_view final_content = chat.final_content;
  const std::string_view content = trimmed(final_content);
  const size_t at = rendered.rfind(content);
  if (content.empty() || at == std::string::npos) {
    return invalid("the last message cannot be continued: the chat template does not show its content as it is",
                   chat.field);
  }
  size_t end = at + content.size();
  // Blanks behind the content stay if the template kept them.
  const std::string_view tail = final_content.substr(final_content.find(content) + content.size());
  if (std::string_view(rendered).substr(end).starts_with(tail)) end += tail.size();
  rendered.resize(end);
  return rendered;
}

Result<std::vector<TokenId>> tokenize_prompt(const Prompt& prompt, bool add_special, const GenerationOptions& options,
                                             const Backend& backend) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) return *ids;
  const std::string& text = std::get<std::string>(prompt);
  if (!options.truncate_prompt_tokens)
    if (auto fits = check_size(text, "prompt", backend); !fits) return std::unexpected(fits.error());
  return tokenize_text(text, add_special, backend);
}

void truncate(std::vector<TokenId>& prompt, const GenerationOptions& options, int64_t max_model_len) {
  if (!options.truncate_prompt_tokens) return;
  const int64_t keep = *options.truncate_prompt_tokens < 0 ? max_model_len - 1 : *options.truncate_prompt_tokens;
  const auto size = static_cast<int64_t>(prompt.size());
  if (size > keep) prompt.erase(prompt.begin(), prompt.begin() + (size - keep));
}

// Settles max_tokens for a prompt of this length.
Result<void> check_length(const std::vector<TokenId>& prompt, const Plan& plan, const Backend& backend) {
  const std::string& param = plan.prompt_field;
  const int64_t most = backend.info->max_model_len;
  const auto size = static_cast<int64_t>(prompt.size());
  if (size == 0) return invalid("the prompt has no tokens", param);
  if (size >= most) {
    return invalid(
        fmt::format("the prompt has {} tokens, but the model's length is {} tokens, prompt and answer together", size,
                    most),
        param);
  }
  const int64_t wanted = plan.options.max_tokens.value_or(0);
  if (size + wanted > most) {
    return invalid(fmt::format("{} is {}, but with a prompt of {} tokens only {} more fit the model's length of {}",
                               plan.options.max_tokens_field, wanted, size, most - size, most),
                   plan.options.max_tokens_field);
  }
  return {};
}

// Every answer has its own copy of the parameters: what all of them hold together is bounded.
Result<void> check_sampling_ids(const Plan& plan, const ServiceOptions& service) {
  const SamplingParams& sampling = plan.options.sampling;
  const std::pair<size_t, const char*> lists[] = {{sampling.allowed_token_ids.size(), "allowed_token_ids"},
                                                  {sampling.stop_token_ids.size(), "stop_token_ids"},
                                                  {sampling.logit_bias.size(), "logit_bias"}};
  size_t ids = 0;
  for (const auto& [size, name] : lists) ids += size;
  if (ids * plan.answers() <= service.max_sampling_ids) return {};
  const char* longest = std::ranges::max(lists).second;
  return invalid(
      fmt::format("allowed_token_ids, stop_token_ids and logit_bias may hold at most {} ids together, times the {} "
                  "answers of this request; they hold {}, most of them in {}",
                  service.max_sampling_ids, plan.answers(), ids, longest),
      longest);
}

Result<void> compile_grammar(Plan& plan, const Backend& backend) {
  const auto& grammar = plan.options.grammar;
  if (!grammar) return {};
  if (backend.grammars == nullptr) {
    return fail(ErrorKind::kUnsupported, fmt::format("{} needs a tokenizer, and this model has none", grammar->param),
                grammar->param);
  }
  auto compiled = backend.grammars->compile(*grammar);
  if (!compiled) return std::unexpected(compiled.error());
  plan.constraint = std::move(*compiled);
  return {};
}

// What both endpoints do once their prompts are tokens.
Result<Plan> finish_plan(Plan plan, const Backend& backend, const ServiceOptions& service, uint64_t random_seed) {
  if (auto fits = check_sampling_ids(plan, service); !fits) return std::unexpected(fits.error());
  size_t total = 0;
  for (std::vector<TokenId>& prompt : plan.prompts) {
    truncate(prompt, plan.options, backend.info->max_model_len);
    if (auto fits = check_length(prompt, plan, backend); !fits) return std::unexpected(fits.error());
    total += prompt.size() * static_cast<size_t>(plan.options.n);
  }
  if (total > service.max_prompt_tokens) {
    return invalid(fmt::format("one request may hold at most {} prompt tokens, times n; this one has {}",
                               service.max_prompt_tokens, total),
                   plan.prompt_field);
  }
  if (backend.tokenizer == nullptr && !plan.options.stop.empty()) {
    return fail(ErrorKind::kUnsupported, "stop strings need a tokenizer, and this model has none: use stop_token_ids",
                "stop");
  }
  if (auto compiled = compile_grammar(plan, backend); !compiled) return std::unexpected(compiled.error());
  if (plan.options.explain && plan.answers() > 1)
    return invalid("quire.explain tells of one answer: ask for one prompt and n of 1", "quire");
  plan.seed_chosen = !plan.options.seed && plan.options.sampling.temperature > 0;
  plan.seed = plan.options.seed.value_or(plan.seed_chosen ? random_seed : 0);
  plan.answer_wanted = plan.options.max_tokens != 0;
  // Without text, ids are all there is to say.
  if (backend.tokenizer == nullptr) plan.options.return_token_ids = true;
  SamplingParams& sampling = plan.options.sampling;
  if (plan.echo && sampling.logprobs && !sampling.prompt_logprobs) sampling.prompt_logprobs = sampling.logprobs;
  return plan;
}

std::string call_key_of(const Plan& plan) {
  Sha256 hash;
  for (const auto& prompt : plan.prompts) hash.update(std::as_bytes(std::span(prompt)));
  hash.update(std::as_bytes(std::span(&plan.seed, 1)));
  const Sha256Digest digest = hash.finish();
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

ParseLimits limits_of(const Backend& backend, const ServiceOptions& service) {
  return {.vocab_size = backend.info->vocab_size,
          .max_model_len = backend.info->max_model_len,
          .hidden_size = backend.info->hidden_size,
          .max_choices = service.max_choices,
          .defaults = service.sampling_defaults};
}

int Plan::max_tokens() const { return std::max(options.max_tokens.value_or(options.default_max_tokens), 1); }

Request Plan::request(size_t answer) const {
  const auto n = static_cast<size_t>(options.n);
  Request request{.prompt = prompts[answer / n],
                  .sampling = options.sampling,
                  .priority = options.priority,
                  .cache_salt = options.cache_salt,
                  .explain_cache = options.explain,
                  .constraint = constraint};
  request.sampling.seed = seed;
  request.sampling.choice = static_cast<int>(answer % n);
  request.sampling.max_tokens = max_tokens();
  // All answers of a prompt share its log-probabilities: the first brings them.
  if (answer % n != 0) request.sampling.prompt_logprobs.reset();
  return request;
}

std::unique_ptr<OutputParser> Plan::new_parser(const OutputFormats& formats) const {
  if (!format) return nullptr;
  const ToolUse& use = format->tool_use;
  if (use.choice == ToolUse::Choice::kNamed) return make_arguments_parser(use.named);
  if (use.choice == ToolUse::Choice::kRequired) return make_calls_parser(use.tools);
  // What must follow something does so from its first token on: it is not the reasoning that the prompt has opened.
  return make_output_parser(formats, use.tools, constraint ? "" : format->prompt_end);
}

Result<void> check_model(const std::optional<std::string>& model, const ServiceOptions& service) {
  const auto& names = service.served_model_names;
  if (!model || std::ranges::find(names, *model) != names.end()) return {};
  return fail(
      ErrorKind::kNotFound,
      fmt::format("the model {} does not exist here; this server has {}", in_quotes(*model), in_quotes(names.front())),
      "model");
}

Result<void> check_size(std::string_view text, const char* param, const Backend& backend) {
  const size_t most = std::max(kQuicklyDone, static_cast<size_t>(backend.info->max_model_len) * kLongestPiece);
  if (text.size() <= most) return {};
  return invalid(fmt::format("the prompt has {} bytes, far more than the {} tokens of the model's length can hold",
                             text.size(), backend.info->max_model_len),
                 param);
}

Result<std::vector<TokenId>> tokenize_text(std::string_view text, bool add_special, const Backend& backend) {
  if (backend.tokenizer == nullptr) {
    return fail(ErrorKind::kUnsupported, "this model has no tokenizer: give the prompt as token ids", "prompt");
  }
  return backend.tokenizer->encode(text, {.add_special = add_special, .parse_special = true});
}

Result<std::string> render_chat(const ChatPrompt& chat, const Backend& backend) {
  if (backend.tokenizer == nullptr || backend.chat_template == nullptr) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("this model has no {}: use /v1/completions",
                            backend.tokenizer == nullptr ? "tokenizer" : "chat template"),
                chat.field);
  }
  auto rendered = backend.chat_template->render(chat.messages, template_options(chat));
  if (!rendered) return fail(rendered.error().kind, rendered.error().message, chat.field);
  if (chat.continue_final_message) {
    rendered = without_end(std::move(*rendered), chat);
    if (!rendered) return std::unexpected(rendered.error());
  }
  if (auto fits = check_size(*rendered, chat.field, backend); !fits) return std::unexpected(fits.error());
  return rendered;
}

Result<Plan> plan_completion(Parsed<CompletionRequest> parsed, const Backend& backend, const ServiceOptions& service,
                             uint64_t random_seed) {
  CompletionRequest& request = parsed.request;
  if (auto known = check_model(request.options.model, service); !known) return std::unexpected(known.error());
  Plan plan{.options = std::move(request.options),
            .prompt_field = "prompt",
            .echo = request.echo,
            .ignored_fields = std::move(parsed.ignored_fields)};
  for (const Prompt& prompt : request.prompts) {
    auto ids = tokenize_prompt(prompt, request.add_special_tokens, plan.options, backend);
    if (!ids) return std::unexpected(ids.error());
    plan.prompts.push_back(std::move(*ids));
  }
  return finish_plan(std::move(plan), backend, service, random_seed);
}

Result<Plan> plan_chat(Parsed<ChatRequest> parsed, const Backend& backend, const ServiceOptions& service,
                       uint64_t random_seed) {
  ChatRequest& request = parsed.request;
  if (auto known = check_model(request.options.model, service); !known) return std::unexpected(known.error());
  auto rendered = render_chat(request.prompt, backend);
  if (!rendered) return std::unexpected(rendered.error());
  auto ids = tokenize_text(*rendered, request.prompt.add_special_tokens, backend);
  if (!ids) return std::unexpected(ids.error());
  Plan plan{.options = std::move(request.options),
            .prompt_field = request.prompt.field,
            .ignored_fields = std::move(parsed.ignored_fields)};
  plan.format = AnswerFormat{.tool_use = std::move(request.tool_use),
                             .include_reasoning = request.include_reasoning,
                             .prompt_end = rendered->substr(rendered->size() - std::min(rendered->size(), kPromptEnd))};
  ToolUse& use = plan.format->tool_use;
  if (use.choice == ToolUse::Choice::kNone) use.tools.clear();
  plan.prompts.push_back(std::move(*ids));
  auto finished = finish_plan(std::move(plan), backend, service, random_seed);
  if (finished) finished->call_key = call_key_of(*finished);
  return finished;
}

}  // namespace quire::api
