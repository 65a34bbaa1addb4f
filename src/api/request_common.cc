#include "api/request_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "api/structured_outputs.h"
#include "base/utf8.h"

namespace quire::api {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 1024;
constexpr size_t kMaxSaltBytes = 1024;
constexpr int kMaxN = 128;
constexpr double kMaxTemperature = 100;
constexpr double kMaxBias = 100;

// Each id once, in order, so that a list is never longer than the vocabulary.
std::vector<TokenId> read_token_set(ObjectReader& in, std::string_view name, const ParseLimits& limits) {
  std::vector<TokenId> ids = in.token_ids(name, limits.vocab_size);
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  ids.shrink_to_fit();
  return ids;
}

void read_logit_bias(ObjectReader& in, const ParseLimits& limits, SamplingParams& sampling) {
  const auto value = in.any("logit_bias");
  if (!value) return;
  if (!value->is_object())
    return in.fail("logit_bias", fmt::format("logit_bias must be an object, not {}", shown(*value)));
  for (const auto [key, bias] : simdjson::dom::object(*value)) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab_size) {
      return in.fail("logit_bias", fmt::format("the keys of logit_bias must be token ids from 0 to {}, not {}",
                                               limits.vocab_size - 1, in_quotes(key)));
    }
    double number = 0;
    if (!bias.is_number() || bias.get(number) != simdjson::SUCCESS || number < -kMaxBias || number > kMaxBias) {
      return in.fail("logit_bias", fmt::format("logit_bias of token {} must be a number from -{} to {}, not {}", id,
                                               kMaxBias, kMaxBias, shown(bias)));
    }
    sampling.logit_bias.emplace_back(static_cast<TokenId>(id), static_cast<float>(number));
  }
  std::ranges::sort(sampling.logit_bias);
  const auto twice = std::ranges::adjacent_find(sampling.logit_bias, {}, &std::pair<TokenId, float>::first);
  if (twice != sampling.logit_bias.end()) {
    in.fail("logit_bias", fmt::format("logit_bias names token {} twice", twice->first));
  }
}

void read_seed(ObjectReader& in, GenerationOptions& options) {
  const auto value = in.any("seed");
  if (!value) return;
  if (value->is<uint64_t>()) {
    options.seed = uint64_t(*value);
  } else if (const auto number = as_integer(*value)) {
    options.seed = static_cast<uint64_t>(*number);
  } else {
    in.fail("seed", fmt::format("seed must be an integer of 64 bits, not {}", shown(*value)));
  }
}

std::optional<float> read_float(ObjectReader& in, std::string_view name, double low, double high) {
  const auto value = in.number(name, low, high);
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

// What requests and generation_config.json have in common, all but max_tokens.
SamplingDefaults read_common_sampling(ObjectReader& in) {
  SamplingDefaults read{.temperature = read_float(in, "temperature", 0, kMaxTemperature),
                        .top_p = read_float(in, "top_p", 0, 1),
                        .min_p = read_float(in, "min_p", 0, 1),
                        .repetition_penalty = read_float(in, "repetition_penalty", 0.01, 100)};
  if (read.top_p && *read.top_p <= 0) in.fail("top_p", "top_p must be greater than 0 and at most 1");
  if (const auto top_k = in.integer("top_k", -1, std::numeric_limits<int>::max()))
    read.top_k = static_cast<int>(std::max<int64_t>(*top_k, 0));
  return read;
}

void read_sampling(ObjectReader& in, const ParseLimits& limits, SamplingParams& sampling) {
  const auto settle = [](const auto& asked, const auto& otherwise, auto& into) {
    if (const auto& value = asked ? asked : otherwise) into = *value;
  };
  const SamplingDefaults asked = read_common_sampling(in);
  settle(asked.temperature, limits.defaults.temperature, sampling.temperature);
  settle(asked.top_p, limits.defaults.top_p, sampling.top_p);
  settle(asked.top_k, limits.defaults.top_k, sampling.top_k);
  settle(asked.min_p, limits.defaults.min_p, sampling.min_p);
  settle(asked.repetition_penalty, limits.defaults.repetition_penalty, sampling.repetition_penalty);
  sampling.presence_penalty = read_float(in, "presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = read_float(in, "frequency_penalty", -2, 2).value_or(0);
  sampling.min_tokens = static_cast<int>(in.integer("min_tokens", 0, limits.max_model_len).value_or(0));
  sampling.ignore_eos = in.boolean("ignore_eos").value_or(false);
  sampling.allowed_token_ids = read_token_set(in, "allowed_token_ids", limits);
  sampling.stop_token_ids = read_token_set(in, "stop_token_ids", limits);
  if (sampling.stop_token_ids.size() > kMaxStopTokens) {
    in.fail("stop_token_ids", fmt::format("stop_token_ids may hold at most {} different ids", kMaxStopTokens));
  }
  read_logit_bias(in, limits, sampling);
}

void read_stream_options(ObjectReader& in, GenerationOptions& options) {
  const auto value = in.any("stream_options");
  if (!value) return;
  if (!options.stream) in.fail("stream_options", "stream_options may only be given with stream");
  ObjectReader stream(*value, "stream_options.");
  options.include_usage = stream.boolean("include_usage").value_or(false);
  options.continuous_usage_stats = stream.boolean("continuous_usage_stats").value_or(false);
  if (stream.failure()) in.fail("stream_options", stream.failure()->message);
}

// Our own fields: they are nobody else's, so an unknown one is a mistake.
void read_quire(ObjectReader& in, GenerationOptions& options) {
  const auto value = in.any("quire");
  if (!value) return;
  ObjectReader reader(*value, "quire.");
  options.explain = reader.boolean("explain").value_or(false);
  if (reader.failure()) return in.fail("quire", reader.failure()->message);
  const auto unknown = reader.unread();
  if (!unknown.empty()) in.fail("quire", fmt::format("quire may hold explain, not {}", in_quotes(unknown.front())));
}

// What OpenAI or vLLM know, or knew, and this server does not: refused, since ignoring it would answer another
// question.
void refuse_unsupported(ObjectReader& in) {
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "bad_words",
                           "use_beam_search", "logits_processors", "prompt_embeds", "kv_transfer_params"}) {
    in.unsupported(name);
  }
}

}  // namespace

Result<SamplingDefaults> parse_generation_config(std::string_view json) {
  const auto wrong = [](const Error& error) {
    return quire::fail(ErrorKind::kCorruptFile, "generation_config.json: " + error.message, error.param);
  };
  const auto document = JsonDocument::parse(json);
  if (!document) return wrong(document.error());
  if (!document->root().is_object()) return wrong({ErrorKind::kCorruptFile, "it must hold a JSON object"});
  ObjectReader in(document->root(), "");
  SamplingDefaults defaults = read_common_sampling(in);
  if (const auto most = in.integer("max_new_tokens", 1, std::numeric_limits<int>::max()))
    defaults.max_tokens = static_cast<int>(*most);
  if (in.failure()) return wrong(*in.failure());
  return defaults;
}

std::string describe(const SamplingDefaults& defaults) {
  std::string text;
  const auto add = [&](const char* name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  add("temperature", defaults.temperature);
  add("top_p", defaults.top_p);
  add("top_k", defaults.top_k);
  add("min_p", defaults.min_p);
  add("repetition_penalty", defaults.repetition_penalty);
  add("max_tokens", defaults.max_tokens);
  return text;
}

void read_stops(ObjectReader& in, std::string_view name, GenerationOptions& options) {
  options.stop = in.strings(name, kMaxStops);
  for (const std::string& text : options.stop) {
    if (text.empty()) in.fail(name, fmt::format("{} may not hold an empty string", name));
    if (text.size() > kMaxStopBytes)
      in.fail(name, fmt::format("a string of {} may have at most {} bytes", name, kMaxStopBytes));
  }
}

void read_max_tokens(ObjectReader& in, const char* name, const ParseLimits& limits, GenerationOptions& options) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (const auto most = in.integer(name, 1, kMost)) options.max_tokens = static_cast<int>(*most);
  options.max_tokens_field = name;
  options.default_max_tokens = limits.defaults.max_tokens.value_or(kMost);
  if (options.sampling.min_tokens > options.max_tokens.value_or(options.default_max_tokens))
    in.fail("min_tokens", fmt::format("min_tokens must not be greater than {}", name));
}

std::optional<int> read_truncation(ObjectReader& in, const ParseLimits& limits) {
  const auto keep = in.integer("truncate_prompt_tokens", -1, limits.max_model_len);
  if (!keep) return {};
  if (*keep == 0) in.fail("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1");
  return static_cast<int>(*keep);
}

int read_priority(ObjectReader& in) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(in.integer("priority", Limits::min(), Limits::max()).value_or(0));
}

std::string read_cache_salt(ObjectReader& in) {
  std::string salt = in.string("cache_salt").value_or("");
  if (salt.size() > kMaxSaltBytes)
    in.fail("cache_salt", fmt::format("cache_salt may have at most {} bytes", kMaxSaltBytes));
  return salt;
}

GenerationOptions read_shared_options(ObjectReader& in, const ParseLimits& limits) {
  GenerationOptions options;
  options.model = in.string("model");
  read_sampling(in, limits, options.sampling);
  read_seed(in, options);
  options.stream = in.boolean("stream").value_or(false);
  options.include_stop_str_in_output = in.boolean("include_stop_str_in_output").value_or(false);
  options.skip_special_tokens = in.boolean("skip_special_tokens").value_or(true);
  options.priority = read_priority(in);
  options.cache_salt = read_cache_salt(in);
  read_quire(in, options);
  return options;
}

GenerationOptions read_options(ObjectReader& in, const ParseLimits& limits) {
  GenerationOptions options = read_shared_options(in, limits);
  options.n = static_cast<int>(in.integer("n", 1, kMaxN).value_or(1));
  const int64_t best_of = in.integer("best_of", 1, kMaxN).value_or(options.n);
  if (best_of != options.n)
    in.fail("best_of", "best_of must equal n: this server returns all it generates", ErrorKind::kUnsupported);
  read_stops(in, "stop", options);
  read_stream_options(in, options);
  options.return_token_ids = in.boolean("return_token_ids").value_or(false);
  options.return_tokens_as_token_ids = in.boolean("return_tokens_as_token_ids").value_or(false);
  options.truncate_prompt_tokens = read_truncation(in, limits);
  in.string("user");
  if (const auto count = in.integer("prompt_logprobs", 0, kMaxLogprobs))
    options.sampling.prompt_logprobs = static_cast<int>(*count);
  if (options.stream && options.sampling.prompt_logprobs) {
    in.fail("prompt_logprobs",
            "prompt_logprobs are part of a whole answer only, so they cannot be had with stream; a completion streams "
            "the prompt's log-probabilities with echo and logprobs");
  }
  options.grammar = read_grammar(in, read_response_format(in));
  refuse_unsupported(in);
  return options;
}

}  // namespace quire::api
