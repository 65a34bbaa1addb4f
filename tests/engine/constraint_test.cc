// Constraints in the engine: which tokens they let through, where answers end, and that answers under them are the same
// bits alone, in a batch, preempted, and on any number of threads. The constraints are the test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/core_harness.h"

namespace quire::test {
namespace {

constexpr int64_t kVocab = 300;  // of the model below
constexpr TokenId kEnd = 2;

// The token that comes n-th must be n modulo `step`; after `length` of them nothing may follow, and from `may_end` on
// the end token may.
struct Rule {
  TokenId step = 5;
  size_t length = 20;
  size_t may_end = 20;
  std::chrono::microseconds delay{0};
  enum class Fault { kNone, kStart, kFill, kAccept, kThrow } fault = Fault::kNone;

  bool allows(size_t n, TokenId id) const {
    return id == kEnd ? n >= may_end : id % step == static_cast<TokenId>(n) % step;
  }
};

std::unexpected<Error> broken() { return fail(ErrorKind::kInvalidRequest, "too many steps", "the field"); }

class RuleMatcher final : public ConstraintMatcher {
 public:
  explicit RuleMatcher(const Rule& rule) : rule_(rule) {}

  Result<void> fill(std::span<uint32_t> mask) override {
    std::this_thread::sleep_for(rule_.delay);
    if (tokens_.size() == 3 && rule_.fault == Rule::Fault::kThrow) throw std::bad_alloc();
    if (tokens_.size() == 3 && rule_.fault == Rule::Fault::kFill) return broken();
    EXPECT_EQ(mask.size(), mask_words(kVocab));
    std::ranges::fill(mask, 0U);
    for (TokenId id = 0; id < kVocab; ++id)
      if (rule_.allows(tokens_.size(), id)) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    return {};
  }
  Result<bool> accept(TokenId token) override {
    EXPECT_TRUE(rule_.allows(tokens_.size(), token));
    tokens_.push_back(token);
    if (tokens_.size() == 3 && rule_.fault == Rule::Fault::kAccept) return broken();
    return token == kEnd || tokens_.size() == rule_.length;
  }
  Result<void> rollback(size_t tokens) override {
    tokens_.resize(tokens_.size() - tokens);
    return {};
  }

 private:
  Rule rule_;
  std::vector<TokenId> tokens_;
};

class RuleConstraint final : public Constraint {
 public:
  explicit RuleConstraint(const Rule& rule, int64_t vocab_size = kVocab) : rule_(rule), vocab_size_(vocab_size) {}
  Result<std::unique_ptr<ConstraintMatcher>> start() const override {
    if (rule_.fault == Rule::Fault::kStart) return broken();
    return std::make_unique<RuleMatcher>(rule_);
  }
  int64_t vocab_size() const override { return vocab_size_; }

 private:
  Rule rule_;
  int64_t vocab_size_;
};

EngineOptions tiny() {
  EngineOptions options;
  options.model = golden_dir() + "/llama_untied";
  options.kv_cache_bytes = size_t{16} << 20;
  options.threads = 2;
  return options;
}

Request constrained(const Rule& rule, std::vector<TokenId> prompt = {7, 8, 9}, float temperature = 0) {
  Request request{.prompt = std::move(prompt), .constraint = std::make_shared<RuleConstraint>(rule)};
  request.sampling.temperature = temperature;
  request.sampling.max_tokens = 100;
  request.sampling.seed = 5;
  return request;
}

void expect_follows(const Answer& answer, const Rule& rule) {
  for (size_t n = 0; n < answer.tokens.size(); ++n) EXPECT_TRUE(rule.allows(n, answer.tokens[n])) << n;
}

TEST(Constraint, EveryTokenFollowsItAndItsEndEndsTheAnswer) {
  CoreHarness harness(tiny());
  for (float temperature : {0.0F, 1.5F}) {
    for (bool delayed : {false, true}) {
      const Rule rule{.delay = std::chrono::microseconds(delayed ? 3000 : 0)};
      const Answer answer = harness.run({constrained(rule, {7, 8, 9}, temperature)}).front();
      EXPECT_EQ(answer.finish, FinishReason::kStop);
      EXPECT_EQ(answer.tokens.size(), rule.length);
      expect_follows(answer, rule);
    }
  }
}

TEST(Constraint, EndTokensComeOnlyWhereItMayEnd) {
  CoreHarness harness(tiny());
  const Rule rule{.may_end = 4};
  Request wants_to_end = constrained(rule);
  wants_to_end.sampling.logit_bias = {{kEnd, 100.0F}};
  EXPECT_EQ(harness.run({wants_to_end}).front().tokens.size(), 5U);
  EXPECT_EQ(harness.run({wants_to_end}).front().tokens.back(), kEnd);

  Request later = wants_to_end;
  later.sampling.min_tokens = 9;
  EXPECT_EQ(harness.run({later}).front().tokens.size(), 10U);

  Request ignores = wants_to_end;  // a constrained answer has an end all the same
  ignores.sampling.ignore_eos = true;
  EXPECT_EQ(harness.run({ignores}).front().tokens.size(), 5U);

  Request too_long = wants_to_end;  // nothing may follow: it ends before min_tokens
  too_long.sampling.min_tokens = 50;
  EXPECT_EQ(harness.run({too_long}).front().tokens.size(), rule.length);
  EXPECT_EQ(harness.run({too_long}).front().finish, FinishReason::kStop);

  Request cut = constrained(rule);
  cut.sampling.max_tokens = 3;
  EXPECT_EQ(harness.run({cut}).front().finish, FinishReason::kLength);
}

TEST(Constraint, LogProbabilitiesAreThoseOfTheWholeVocabulary) {
  CoreHarness harness(tiny());
  Request plain = greedy({7, 8, 9}, 1);
  plain.sampling.logprobs = 300;
  const PositionLogprobs all = harness.run({plain}).front().logprobs.front();
  for (float temperature : {0.0F, 1.0F}) {
    Request request = constrained({}, {7, 8, 9}, temperature);
    request.sampling.logprobs = 300;
    const Answer answer = harness.run({request}).front();
    const PositionLogprobs& first = answer.logprobs.front();
    for (size_t i = 0; i < all.top.size(); ++i) {
      EXPECT_EQ(first.top[i].token, all.top[i].token);
      EXPECT_EQ(first.top[i].logprob, all.top[i].logprob);
    }
    const auto same = std::ranges::find(all.top, answer.tokens.front(), &TokenLogprob::token);
    EXPECT_EQ(first.token.logprob, same->logprob);
    EXPECT_EQ(first.token.rank, same->rank);
  }
}

// Requests with and without constraints, of all ways to sample, whose answers must not depend on the company.
std::vector<Request> mixture() {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    std::vector<TokenId> prompt;
    for (int k = 0; k < 20 + 7 * i; ++k) prompt.push_back((k * 11 + i * 17) % 290);
    const Rule rule{.step = 2 + i % 5,
                    .length = static_cast<size_t>(30 + i),
                    .may_end = static_cast<size_t>(10 + i),
                    .delay = std::chrono::microseconds(i % 3 == 0 ? 500 : 0)};
    Request request = constrained(rule, std::move(prompt), i % 2 == 0 ? 0.0F : 1.2F);
    request.sampling.choice = i % 4;
    request.sampling.logprobs = 2;
    if (i % 3 == 1) request.sampling.frequency_penalty = 0.5F;
    if (i % 4 == 3) request.constraint = nullptr, request.sampling.max_tokens = 40;
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_same(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.finish, b.finish);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) EXPECT_EQ(a.logprobs[i].token.logprob, b.logprobs[i].token.logprob);
}

// The least cache that admits one request of the mixture alone.
size_t smallest_cache(EngineOptions options) {
  for (size_t bytes = size_t{1} << 12;; bytes += size_t{1} << 12) {
    options.kv_cache_bytes = bytes;
    if (engine::LoadedModel::load(options)) return bytes;
  }
}

TEST(Constraint, AnswersDoNotDependOnCompanyPreemptionOrThreads) {
  const std::vector<Request> requests = mixture();
  std::vector<Answer> alone;
  {
    EngineOptions options = tiny();
    options.threads = 1;
    CoreHarness harness(options);
    for (const Request& request : requests) alone.push_back(harness.run({request}).front());
  }
  EXPECT_TRUE(std::ranges::any_of(alone, [](const Answer& a) { return a.tokens.back() == kEnd; }));
  for (int threads : {1, 3}) {
    for (bool small : {false, true}) {
      EngineOptions options = tiny();
      options.threads = threads;
      options.max_model_len = 256;
      options.max_num_batched_tokens = 64;
      if (small) options.kv_cache_bytes = smallest_cache(options);
      CoreHarness harness(options);
      const std::vector<Answer> together = harness.run(requests);
      for (size_t i = 0; i < requests.size(); ++i) expect_same(together[i], alone[i]);
      EXPECT_EQ(harness.core().stats().preemptions > 0, small);
    }
  }
}

TEST(Constraint, AFaultEndsItsRequestAlone) {
  CoreHarness harness(tiny());
  using enum Rule::Fault;
  for (const auto fault : {kStart, kFill, kAccept, kThrow}) {
    const uint64_t bad = harness.add(constrained({.fault = fault}));
    const uint64_t good = harness.add(constrained({}));
    const uint64_t plain = harness.add(greedy({1, 2, 3}, 30));
    harness.run();
    EXPECT_EQ(harness.answer(bad).finish, FinishReason::kError);
    ASSERT_TRUE(harness.answer(bad).error);
    if (fault != kThrow) {
      EXPECT_EQ(harness.answer(bad).error->param, "the field");
    }
    EXPECT_LE(harness.answer(bad).tokens.size(), 3U);
    EXPECT_EQ(harness.answer(good).tokens.size(), 20U);
    EXPECT_EQ(harness.answer(plain).tokens.size(), 30U);
  }
}

TEST(Constraint, NothingLeftIsAnErrorAndAnotherVocabularyIsRefused) {
  CoreHarness harness(tiny());
  Request nothing = constrained({.step = 2});
  nothing.sampling.allowed_token_ids = {1};  // the first token must be even
  const Answer answer = harness.run({nothing}).front();
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.error->kind, ErrorKind::kInvalidRequest);

  Request foreign = constrained({});
  foreign.constraint = std::make_shared<RuleConstraint>(Rule{}, kVocab + 1);
  const auto valid = engine::validate_request(foreign, harness.core().info());
  ASSERT_FALSE(valid);
  EXPECT_EQ(valid.error().param, "constraint");
}

TEST(Constraint, CancellingLeavesNothingBehind) {
  CoreHarness harness(tiny());
  for (int round = 0; round < 20; ++round) {
    const uint64_t id = harness.add(constrained({.delay = std::chrono::microseconds(round * 50)}));
    for (int step = 0; step < round % 5; ++step) harness.step();
    harness.core().cancel(RequestId(id));
    harness.step();
  }
  EXPECT_FALSE(harness.core().has_work());
  EXPECT_EQ(harness.core().stats().kv_cache_usage, 0);
}

}  // namespace
}  // namespace quire::test
