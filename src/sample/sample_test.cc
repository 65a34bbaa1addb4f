#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/cpu.h"
#include "sample/gumbel.h"
#include "sample/philox.h"
#include "sample/sampler.h"

namespace quire::sample {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

kernels::KernelTable table() { return *kernels::kernel_table(Isa::kScalar, detect_cpu()); }

Result<TokenId> choose(std::span<float> logits, const SampleContext& context) {
  SampleScratch scratch(std::ssize(logits));
  return sample(table(), logits, context, scratch);
}

// The known answers of the Random123 distribution (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U, ~0U, ~0U}, ~uint64_t{0}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Gumbel, SkippingHopelessTokensChangesNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::normal_distribution<float> normal(0, static_cast<float>(round % 7) * 3);
    std::vector<float> logits(static_cast<size_t>(1 + random() % 400));
    for (float& x : logits) x = random() % 8 == 0 ? kNever : normal(random);
    const NoiseKey key{random(), static_cast<uint32_t>(random() % 3), static_cast<int64_t>(random() % 1000)};
    TokenId best = 0;
    float value = kNever;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float with_noise = logits[i] + gumbel_noise(key, static_cast<TokenId>(i));
      if (with_noise > value) best = static_cast<TokenId>(i), value = with_noise;
    }
    EXPECT_EQ(sample_gumbel(logits, key), best);
  }
}

TEST(Gumbel, NoiseDependsOnEveryPartOfTheKey) {
  const NoiseKey key{7, 1, 5};
  const float noise = gumbel_noise(key, 3);
  EXPECT_EQ(noise, gumbel_noise(key, 3));
  EXPECT_NE(noise, gumbel_noise({8, 1, 5}, 3));
  EXPECT_NE(noise, gumbel_noise({7, 2, 5}, 3));
  EXPECT_NE(noise, gumbel_noise({7, 1, 6}, 3));
  EXPECT_NE(noise, gumbel_noise({7, 1, 5 + (int64_t{1} << 32)}, 3));
  EXPECT_NE(noise, gumbel_noise(key, 4));
}

// Draws at many positions and compares frequencies with the softmax by a chi-square test. The seeds are fixed, so it
// passes always or never; the bound is the 99.9 % quantile.
TEST(Sampler, DrawsFromTheSoftmaxOfTheScaledLogits) {
  const std::vector<float> logits = {1.5F, -0.5F, 0.25F, 2.0F, kNever, 0.0F, -1.0F, 1.0F};
  SamplingParams params;
  params.temperature = 0.7F;
  params.seed = 1234;
  const TokenCounts counts(params, {});
  std::vector<double> expected(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += expected[i] = std::exp(static_cast<double>(logits[i]) / 0.7);
  constexpr int kDraws = 40000;
  std::vector<int> seen(logits.size());
  for (int position = 0; position < kDraws; ++position) {
    auto copy = logits;
    const auto token = choose(copy, {&params, &counts, {}, 0, position});
    ASSERT_TRUE(token);
    ++seen[static_cast<size_t>(*token)];
  }
  EXPECT_EQ(seen[4], 0);
  double chi_square = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (expected[i] == 0) continue;
    const double want = expected[i] / sum * kDraws;
    chi_square += (seen[i] - want) * (seen[i] - want) / want;
  }
  EXPECT_LT(chi_square, 22.46);  // 6 degrees of freedom
}

struct Case {
  SamplingParams params;
  std::vector<TokenId> can_appear;
};

// Which tokens ever appear over many positions, for distributions where the answer can be worked out by hand.
TEST(Sampler, FiltersKeepWhatTheyShould) {
  // Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625.
  const std::vector<float> logits = {std::log(0.5F), std::log(0.25F), std::log(0.125F), std::log(0.0625F),
                                     std::log(0.0625F)};
  std::vector<Case> cases;
  cases.push_back({{.top_k = 2}, {0, 1}});
  cases.push_back({{.top_k = 4}, {0, 1, 2, 3}});  // a tie goes to the lower id
  cases.push_back({{.top_p = 0.5F}, {0}});
  cases.push_back({{.top_p = 0.51F}, {0, 1}});
  cases.push_back({{.top_p = 0.9F}, {0, 1, 2, 3}});
  cases.push_back({{.min_p = 0.3F}, {0, 1}});
  cases.push_back({{.allowed_token_ids = {1, 4}}, {1, 4}});
  cases.push_back({{.logit_bias = {{0, -100}, {1, -100}}}, {2, 3, 4}});
  for (auto& c : cases) {
    const TokenCounts counts(c.params, {});
    std::map<TokenId, int> seen;
    for (int position = 0; position < 3000; ++position) {
      auto copy = logits;
      ++seen[*choose(copy, {&c.params, &counts, {}, 0, position})];
    }
    std::vector<TokenId> tokens;
    for (const auto& [token, count] : seen) tokens.push_back(token);
    EXPECT_EQ(tokens, c.can_appear);
  }
}

TEST(Sampler, PenaltiesSeeThePromptAndTheOutput) {
  SamplingParams params{.temperature = 0};
  params.repetition_penalty = 2;
  TokenCounts counts(params, std::vector<TokenId>{0});
  std::vector<float> logits = {3.0F, 2.0F, 1.0F};
  EXPECT_EQ(*choose(logits, {&params, &counts, {}, 0, 1}), 1);  // 3 / 2 < 2
  counts.add_output(1);
  logits = {3.0F, 2.0F, 1.2F};
  EXPECT_EQ(*choose(logits, {&params, &counts, {}, 1, 2}), 0);  // 1.5, 1, 1.2

  SamplingParams frequency{.temperature = 0};
  frequency.frequency_penalty = 0.5F;
  TokenCounts twice(frequency, std::vector<TokenId>{0});
  twice.add_output(1);
  twice.add_output(1);
  logits = {0.0F, 0.9F, 0.1F};
  EXPECT_EQ(*choose(logits, {&frequency, &twice, {}, 2, 3}), 2);  // the prompt does not count here
}

TEST(Sampler, NoEndTokenBeforeMinTokens) {
  SamplingParams params{.temperature = 0, .max_tokens = 4, .min_tokens = 2};
  params.stop_token_ids = {1};
  const TokenCounts counts(params, {});
  const std::vector<TokenId> end = {0};
  for (int output : {0, 1, 2}) {
    std::vector<float> logits = {3, 2, 1};
    EXPECT_EQ(*choose(logits, {&params, &counts, end, output, output}), output < 2 ? 2 : 0);
  }
}

// Against the plain meaning: of the tokens whose bit is set, the most likely one; whatever else the request asks for.
TEST(Sampler, OnlyTokensOfTheMaskAreChosen) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random() % 200);
    for (float& x : logits) x = normal(random);
    std::vector<uint32_t> mask((logits.size() + 31) / 32);
    for (uint32_t& word : mask) {
      const auto bits = round % 3 == 1 ? random() : random() & random() & random();
      word = round % 3 == 0 ? ~0U : static_cast<uint32_t>(bits);
    }
    const auto allowed = [&](TokenId id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 1; };
    TokenId best = -1;
    for (TokenId id = 0; id < std::ssize(logits); ++id)
      if (allowed(id) && (best < 0 || logits[static_cast<size_t>(id)] > logits[static_cast<size_t>(best)])) best = id;

    SamplingParams greedy{.temperature = 0};
    const TokenCounts none(greedy, {});
    SampleContext context{.params = &greedy, .counts = &none, .mask = mask};
    std::vector<float> used = logits;
    const auto chosen = choose(used, context);
    ASSERT_EQ(chosen.has_value(), best >= 0);
    if (best < 0) continue;
    EXPECT_EQ(*chosen, best);
    EXPECT_FALSE(leaves_logits(context));

    SamplingParams warm{.temperature = 3, .top_p = 0.9F, .top_k = 40, .repetition_penalty = 1.5F};
    warm.logit_bias = {{0, 5.0F}};
    warm.seed = random();
    const TokenCounts seen(warm, std::vector<TokenId>{0});
    used = logits;
    context.params = &warm;
    context.counts = &seen;
    EXPECT_TRUE(allowed(*choose(used, context)));
  }
}

TEST(Sampler, NaNEndsTheRequest) {
  SamplingParams params;
  const TokenCounts counts(params, {});
  std::vector<float> logits = {0, std::numeric_limits<float>::quiet_NaN()};
  const auto token = choose(logits, {&params, &counts, {}, 0, 0});
  ASSERT_FALSE(token);
  EXPECT_EQ(token.error().kind, ErrorKind::kInternal);
}

// Nothing that a request may ask for hangs or chooses what it forbade.
TEST(Sampler, LimitsThatLeaveNothingAndInfiniteLogitsAreErrors) {
  const std::vector<TokenId> end = {5};
  for (float temperature : {0.0F, 0.7F}) {
    SamplingParams params{.temperature = temperature, .top_p = 0.5F, .min_p = 0.1F, .max_tokens = 8, .min_tokens = 3};
    params.allowed_token_ids = {5};
    const TokenCounts counts(params, {});
    std::vector<float> logits(10, 1.0F);
    const auto none = choose(logits, {&params, &counts, end, 0, 0});
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().kind, ErrorKind::kInvalidRequest);

    SamplingParams plain{.temperature = temperature, .top_p = 0.5F, .top_k = 3};
    logits.assign(10, 1.0F);
    logits[3] = std::numeric_limits<float>::infinity();
    const auto infinite = choose(logits, {&plain, &counts, {}, 0, 0});
    ASSERT_FALSE(infinite);
    EXPECT_EQ(infinite.error().kind, ErrorKind::kInternal);

    logits.assign(10, 3e38F);  // a small temperature makes these infinite
    plain.temperature = temperature * 0.1F;
    EXPECT_EQ(choose(logits, {&plain, &counts, {}, 0, 0}).has_value(), temperature == 0);
  }
}

TEST(Sampler, TopPTakesAllWhenTheLogitsAreFarApart) {
  SamplingParams params{.top_p = 0.999999F};
  const TokenCounts counts(params, {});
  std::vector<float> logits = {0, -1e30F, -2e38F, kNever};
  EXPECT_EQ(*choose(logits, {&params, &counts, {}, 0, 0}), 0);
}

TEST(Sampler, LogProbabilitiesAreTheLogSoftmax) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(3000);
  for (float& x : logits) x = normal(random);
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  const auto result = log_probabilities(table(), logits, 17, 5);
  EXPECT_NEAR(result.token.logprob, static_cast<double>(logits[17]) - std::log(sum), 1e-5);
  std::vector<float> sorted = logits;
  std::ranges::sort(sorted, std::greater<>());
  ASSERT_EQ(result.top.size(), 5U);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(logits[static_cast<size_t>(result.top[i].token)], sorted[i]);
  EXPECT_EQ(sorted[static_cast<size_t>(result.token.rank - 1)], logits[17]);
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  const auto refused = [](auto set) {
    SamplingParams params;
    set(params);
    const auto checked = validate(params, 100);
    return checked ? std::string() : checked.error().param;
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_EQ(refused([](auto& p) { p.temperature = -1; }), "temperature");
  EXPECT_EQ(refused([](auto& p) { p.temperature = std::numeric_limits<float>::quiet_NaN(); }), "temperature");
  EXPECT_EQ(refused([](auto& p) { p.top_p = 0; }), "top_p");
  EXPECT_EQ(refused([](auto& p) { p.top_k = -1; }), "top_k");
  EXPECT_EQ(refused([](auto& p) { p.min_p = 1.5F; }), "min_p");
  EXPECT_EQ(refused([](auto& p) { p.repetition_penalty = 1e-38F; }), "repetition_penalty");
  EXPECT_EQ(refused([](auto& p) { p.logit_bias = {{100, 1}}; }), "logit_bias");
  EXPECT_EQ(refused([](auto& p) { p.allowed_token_ids = {-1}; }), "allowed_token_ids");
  EXPECT_EQ(refused([](auto& p) { p.stop_token_ids = {200}; }), "stop_token_ids");
  EXPECT_EQ(refused([](auto& p) { p.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(refused([](auto& p) { p.min_tokens = 17; }), "min_tokens");
  EXPECT_EQ(refused([](auto& p) { p.logprobs = 101; }), "logprobs");
}

}  // namespace
}  // namespace quire::sample
