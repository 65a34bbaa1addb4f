#include "sample/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/math.h"
#include "kernels/scan.h"
#include "sample/gumbel.h"

namespace quire::sample {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::unexpected<Error> bad(const char* field, std::string message) {
  return fail(ErrorKind::kInvalidRequest, std::string(field) + " " + std::move(message), field);
}

Result<void> check_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return bad(field, fmt::format("must be between {} and {}, not {}", low, high, value));
}

Result<void> check_ids(const char* field, std::span<const TokenId> ids, int64_t vocab_size) {
  for (TokenId id : ids)
    if (id < 0 || id >= vocab_size) return bad(field, fmt::format("holds {}; the vocabulary has {}", id, vocab_size));
  return {};
}

bool is_greedy(const SamplingParams& params) { return params.temperature < 1e-5F; }

void keep_only(std::span<float> logits, std::span<const kernels::ScoredId> kept) {
  std::ranges::fill(logits, kNever);
  for (const auto& entry : kept) logits[static_cast<size_t>(entry.id)] = entry.value;
}

void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  if (mask.empty()) return;
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    const uint32_t allowed = mask[begin / 32];
    if (allowed == ~0U) continue;
    const size_t count = std::min<size_t>(32, logits.size() - begin);
    for (size_t i = 0; i < count; ++i)
      if ((allowed >> i & 1U) == 0) logits[begin + i] = kNever;
  }
}

void allow(std::span<float> logits, std::span<const TokenId> allowed, SampleScratch& scratch) {
  if (allowed.empty()) return;
  scratch.entries.clear();
  for (TokenId id : allowed) scratch.entries.push_back({id, logits[static_cast<size_t>(id)]});
  keep_only(logits, scratch.entries);
}

void ban(std::span<float> logits, std::span<const TokenId> tokens) {
  for (TokenId id : tokens) logits[static_cast<size_t>(id)] = kNever;
}

void penalise(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts) {
  for (const auto& [token, output] : counts.counts()) {
    float& x = logits[static_cast<size_t>(token)];
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (output == 0) continue;
    x -= params.frequency_penalty * static_cast<float>(output);
    x -= params.presence_penalty;
  }
}

// Leaves the k greatest, ties to the lower id.
void keep_top_k(const kernels::KernelTable& table, std::span<float> logits, int k, SampleScratch& scratch) {
  if (k <= 0 || static_cast<size_t>(k) >= logits.size()) return;
  scratch.entries.resize(static_cast<size_t>(k));
  kernels::top_n(table, logits, scratch.entries);
  keep_only(logits, scratch.entries);
}

// Leaves the fewest most likely tokens whose probabilities reach `p`. Tokens are looked at in descending order, taken
// from above a threshold that falls until they suffice; where it starts does not change the result.
void keep_top_p(const kernels::KernelTable& table, std::span<float> logits, float p, SampleScratch& scratch) {
  if (p >= 1) return;
  const float log_sum = kernels::log_sum_exp(table, logits);
  const float greatest = *std::ranges::max_element(logits);
  for (float depth = 8;; depth *= 2) {
    const float threshold = std::max(greatest - depth, std::numeric_limits<float>::lowest());
    std::vector<kernels::ScoredId>& likely = scratch.entries;
    likely.clear();
    size_t finite = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      finite += logits[i] != kNever ? 1U : 0U;
      if (logits[i] >= threshold) likely.push_back({static_cast<int32_t>(i), logits[i]});
    }
    std::ranges::sort(
        likely, [](const auto& a, const auto& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); });
    float sum = 0;
    size_t keep = 0;
    while (keep < likely.size() && sum < p) sum += kernels::exp(likely[keep++].value - log_sum);
    if (sum < p && likely.size() < finite) continue;  // ends: at the lowest threshold all finite entries are likely
    return keep_only(logits, std::span(likely).first(keep));
  }
}

void keep_min_p(std::span<float> logits, float min_p) {
  if (min_p <= 0) return;
  const float threshold = *std::ranges::max_element(logits) + kernels::log(min_p);
  for (float& x : logits)
    if (x < threshold) x = kNever;
}

}  // namespace

Result<void> validate(const SamplingParams& p, int64_t vocab_size) {
  const struct {
    const char* field;
    float value, low, high;
  } ranges[] = {{"temperature", p.temperature, 0, 100},
                {"top_p", p.top_p, 0, 1},
                {"min_p", p.min_p, 0, 1},
                {"presence_penalty", p.presence_penalty, -2, 2},
                {"frequency_penalty", p.frequency_penalty, -2, 2},
                {"repetition_penalty", p.repetition_penalty, 0.01F, 100}};
  for (const auto& range : ranges)
    if (auto checked = check_range(range.field, range.value, range.low, range.high); !checked) return checked;
  if (p.top_p == 0) return bad("top_p", "must be greater than 0");
  if (p.top_k < 0) return bad("top_k", "must be 0 (all) or greater");
  if (p.max_tokens < 1) return bad("max_tokens", fmt::format("must be at least 1, not {}", p.max_tokens));
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens)
    return bad("min_tokens", fmt::format("must be between 0 and max_tokens, not {}", p.min_tokens));
  for (const auto& [id, bias] : p.logit_bias) {
    if (auto checked = check_ids("logit_bias", {&id, 1}, vocab_size); !checked) return checked;
    if (auto checked = check_range("logit_bias", bias, -100, 100); !checked) return checked;
  }
  if (auto checked = check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size); !checked) return checked;
  if (auto checked = check_ids("stop_token_ids", p.stop_token_ids, vocab_size); !checked) return checked;
  for (const auto& [field, wanted] :
       {std::pair{"logprobs", p.logprobs}, std::pair{"prompt_logprobs", p.prompt_logprobs}})
    if (wanted && (*wanted < 0 || *wanted > vocab_size))
      return bad(field, fmt::format("must be between 0 and the vocabulary's {}, not {}", vocab_size, *wanted));
  return {};
}

TokenCounts::TokenCounts(const SamplingParams& params, std::span<const TokenId> prompt)
    : wanted_(params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0) {
  if (!wanted_) return;
  for (TokenId token : prompt) counts_.push_back({.token = token});
  std::ranges::sort(counts_, {}, &Count::token);
  const auto repeated = std::ranges::unique(counts_, {}, &Count::token);
  counts_.erase(repeated.begin(), repeated.end());
}

void TokenCounts::reserve(size_t output) {
  if (wanted_) counts_.reserve(counts_.size() + output);
}

void TokenCounts::add_output(TokenId token) {
  if (!wanted_) return;
  auto place = std::ranges::lower_bound(counts_, token, {}, &Count::token);
  if (place == counts_.end() || place->token != token) place = counts_.insert(place, {.token = token});
  ++place->output;
}

Result<TokenId> sample(const kernels::KernelTable& table, std::span<float> logits, const SampleContext& context,
                       SampleScratch& scratch) {
  const SamplingParams& params = *context.params;
  if (table.scan->has_nan(logits.data(), static_cast<int>(logits.size())))
    return fail(ErrorKind::kInternal, "the model produced logits that are not numbers");

  apply_mask(logits, context.mask);
  allow(logits, params.allowed_token_ids, scratch);
  if (context.num_output < params.min_tokens) {
    ban(logits, context.end_tokens);
    ban(logits, params.stop_token_ids);
  }
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
  penalise(logits, params, *context.counts);
  if (!is_greedy(params)) {
    const float inverse = 1 / params.temperature;
    for (float& x : logits) x *= inverse;
  }
  const kernels::ScoredId most_likely = table.scan->argmax(logits.data(), static_cast<int>(logits.size()));
  if (most_likely.value == kNever)
    return fail(ErrorKind::kInvalidRequest, "the request's limits leave no token to choose", "allowed_token_ids");
  if (!std::isfinite(most_likely.value))
    return fail(ErrorKind::kInternal, "the logits are not finite; the model or the request's bias makes them so");
  if (is_greedy(params)) return most_likely.id;

  keep_top_k(table, logits, params.top_k, scratch);
  keep_top_p(table, logits, params.top_p, scratch);
  keep_min_p(logits, params.min_p);
  return sample_gumbel(logits, {params.seed, static_cast<uint32_t>(params.choice), context.position});
}

bool leaves_logits(const SampleContext& context) {
  const SamplingParams& p = *context.params;
  return is_greedy(p) && context.mask.empty() && p.logit_bias.empty() && p.allowed_token_ids.empty() &&
         p.min_tokens == 0 && p.presence_penalty == 0 && p.frequency_penalty == 0 && p.repetition_penalty == 1;
}

PositionLogprobs log_probabilities(const kernels::KernelTable& table, std::span<const float> logits, TokenId token,
                                   int top) {
  const float log_sum = kernels::log_sum_exp(table, logits);
  const float value = logits[static_cast<size_t>(token)];
  PositionLogprobs result;
  // Ties rank by id, as in the list of the best.
  const auto before = std::ranges::count(logits.first(static_cast<size_t>(token)), value);
  const int above = table.scan->count_above(logits.data(), static_cast<int>(logits.size()), value);
  result.token = {token, value - log_sum, 1 + above + static_cast<int>(before)};
  std::vector<kernels::ScoredId> best(std::min(static_cast<size_t>(top), logits.size()));
  kernels::top_n(table, logits, best);
  for (size_t i = 0; i < best.size(); ++i)
    result.top.push_back({best[i].id, best[i].value - log_sum, static_cast<int>(i) + 1});
  return result;
}

}  // namespace quire::sample
