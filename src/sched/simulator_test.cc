#include "sched/simulator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace quire::sched {
namespace {

cache::CacheSpec full(int64_t block) { return {.block_size = block, .state_bytes = 16}; }

SimulationConfig config_of(std::vector<cache::CacheSpec> specs, int64_t num_blocks, int64_t max_model_len = 256) {
  SimulationConfig config;
  for (const auto& spec : specs) config.cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
  config.cache.num_blocks = num_blocks;
  config.cache.max_model_len = max_model_len;
  config.cache.limits.max_in_flight_tokens = 64;
  config.step_seconds = 1e6;  // tokens limit steps, time never does
  config.max_tokens = 64;
  config.cost = {.step_ns = 1000, .token_ns = 10};
  config.check_integrity = true;
  return config;
}

TraceSource source_of(std::vector<TraceRequest> requests) {
  return [requests = std::move(requests), next = size_t{0}]() mutable -> Result<std::optional<TraceRequest>> {
    if (next == requests.size()) return std::nullopt;
    return requests[next++];
  };
}

TraceRequest request(int64_t arrival_ns, std::vector<TokenPiece> prompt, int64_t output) {
  return {.arrival_ns = arrival_ns,
          .prompt = std::move(prompt),
          .output = {Segment{900 + static_cast<uint64_t>(arrival_ns), output}}};
}

struct Run {
  SimulationReport report;
  std::vector<RequestOutcome> outcomes;  // by index
};

Run run(const SimulationConfig& config, std::vector<TraceRequest> requests) {
  Run result;
  result.outcomes.resize(requests.size());
  auto report = simulate(config, source_of(std::move(requests)),
                         [&](const RequestOutcome& outcome) { result.outcomes.at(outcome.index) = outcome; });
  EXPECT_TRUE(report) << report.error().message;
  if (report) result.report = *report;
  return result;
}

TEST(Segments, EqualKeysGiveEqualTokens) {
  const auto longer = expand_tokens({Segment{5, 100}}, 100);
  const auto shorter = expand_tokens({Segment{5, 40}}, 100);
  EXPECT_EQ(shorter.size(), 40U);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  EXPECT_NE(expand_tokens({Segment{6, 40}}, 40), shorter);
  EXPECT_TRUE(std::ranges::all_of(longer, [](TokenId token) { return token >= 0; }));
}

TEST(Segments, AreJoinedUpToALimit) {
  const std::vector<TokenPiece> pieces = {std::vector<TokenId>{1, 2, 3}, Segment{5, int64_t{1} << 50},
                                          std::vector<TokenId>{4}};
  EXPECT_EQ(count_tokens(pieces), (int64_t{1} << 50) + 4);
  const auto tokens = expand_tokens(pieces, 10);
  ASSERT_EQ(tokens.size(), 10U);
  EXPECT_EQ(std::vector(tokens.begin(), tokens.begin() + 3), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(std::vector(tokens.begin() + 3, tokens.end()), expand_tokens({Segment{5, 7}}, 7));
  EXPECT_EQ(expand_tokens(pieces, 2), (std::vector<TokenId>{1, 2}));
}

TEST(Distributions, QuantilesAreThoseOfTheSortedValues) {
  std::mt19937_64 random(3);
  Distribution distribution;
  std::vector<int64_t> values;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(static_cast<int64_t>(random() >> (random() % 63 + 1)));
    distribution.add(values.back());
  }
  std::ranges::sort(values);
  for (const double part : {0.0, 0.01, 0.5, 0.9, 0.99, 1.0}) {
    const auto rank = static_cast<size_t>(std::max(1.0, part * 5000 + 0.5));
    const int64_t exact = values[rank - 1];
    const int64_t found = distribution.quantile(part);
    EXPECT_LE(found, exact) << part;
    EXPECT_GE(found, exact - exact / 32) << part;
  }
  EXPECT_EQ(distribution.max(), values.back());
  EXPECT_EQ(Distribution{}.quantile(0.5), 0);
  EXPECT_EQ(Distribution{}.mean(), 0);
}

// Steps of 1,000 ns and 10 for a token, at most 64 tokens. Each line below is counted by hand.
TEST(Simulator, CountsStepsAndTime) {
  const auto [report, outcomes] = run(config_of({full(16)}, 40), {request(0, {Segment{1, 100}}, 3),  //
                                                                  request(2500, {Segment{2, 10}}, 1)});
  // 64 tokens in [0, 1640); 36 in [1640, 3000), with the first token; 1 and 10 in [3000, 4110); 1 in [4110, 5120).
  EXPECT_EQ(report.steps, 4);
  EXPECT_EQ(report.duration_ns, 5120);
  EXPECT_EQ(report.computed_tokens, 112);
  EXPECT_EQ(outcomes[0].waited_steps, 0);
  EXPECT_EQ(outcomes[0].waited_ns, 0);
  EXPECT_EQ(outcomes[0].first_token_ns, 3000);
  EXPECT_EQ(outcomes[0].total_ns, 5120);
  EXPECT_EQ(outcomes[0].output_tokens, 3);
  EXPECT_EQ(outcomes[1].waited_steps, 0);
  EXPECT_EQ(outcomes[1].waited_ns, 500);
  EXPECT_EQ(outcomes[1].first_token_ns, 1610);
  EXPECT_EQ(outcomes[1].total_ns, 1610);
  EXPECT_EQ(report.running.mean(), 5.0 / 4);
  EXPECT_EQ(report.running.max(), 2);
  EXPECT_EQ(report.blocks.max(), 8);  // 101 tokens in 7 blocks, and one
  EXPECT_EQ(report.blocks.mean(), (4 + 7 + 8 + 7) / 4.0);
  EXPECT_EQ(report.total_blocks, 39);
  EXPECT_EQ(report.preemptions, 0);
}

// A token takes 1 ms.
SimulationConfig timed_config(double step_seconds) {
  auto config = config_of({full(16)}, 200, 2048);
  config.cost = {.step_ns = 0, .token_ns = 1'000'000};
  config.step_seconds = step_seconds;
  config.max_tokens = config.cache.limits.max_in_flight_tokens = 2048;
  return config;
}

TEST(Simulator, StepsOfARequestThatIsAloneTakeTenTimesTheTime) {
  // 128 tokens until a step was measured, then 201 in ten times 0.0201 s, and 269 <= 301 at the end.
  const auto report = run(timed_config(0.0201), {request(0, {Segment{1, 1000}}, 1)}).report;
  EXPECT_EQ(report.steps, 5);
  EXPECT_EQ(report.duration_ns, 1'000'000'000);
}

TEST(Simulator, StepsLeaveRoomForPromptsBesideTheRequestsThatDecode) {
  // 0.01 s are 10 tokens. Until the first request decodes steps have 32: 128, 32 and 40 <= 48. Then they have one more:
  // five times 1 + 32, and 1 + 40. 64 requests could run, but two do.
  const auto outcomes =
      run(timed_config(0.01), {request(0, {Segment{1, 200}}, 20), request(0, {Segment{2, 200}}, 1)}).outcomes;
  EXPECT_EQ(outcomes[0].first_token_ns, 200'000'000);
  EXPECT_EQ(outcomes[1].waited_ns, 200'000'000);
  EXPECT_EQ(outcomes[1].waited_steps, 3);
  EXPECT_EQ(outcomes[1].first_token_ns, 406'000'000);
}

TEST(Simulator, JumpsToTheNextArrival) {
  const auto [report, outcomes] = run(config_of({full(16)}, 40), {request(0, {Segment{1, 10}}, 1),  //
                                                                  request(50'000, {Segment{2, 10}}, 1)});
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.duration_ns, 51'100);
  EXPECT_EQ(outcomes[1].waited_ns, 0);
}

TEST(Simulator, FindsWhatAnAnswerLeftBehind) {
  TraceRequest first = request(0, {Segment{1, 40}}, 30);
  TraceRequest second = request(1'000'000, {Segment{1, 40}, first.output[0], Segment{3, 20}}, 5);
  const auto [report, outcomes] = run(config_of({full(16)}, 40), {first, second});
  // 70 tokens, of which the last answered one was never computed: 4 blocks of 16.
  EXPECT_EQ(outcomes[0].cached_tokens, 0);
  EXPECT_EQ(outcomes[1].cached_tokens, 64);
  EXPECT_EQ(report.prompt_tokens, 40 + 90);
  EXPECT_EQ(report.cached_tokens, 64);
  EXPECT_DOUBLE_EQ(report.hit_rate(), 64.0 / 130);

  second.cache_salt = "other";
  EXPECT_EQ(run(config_of({full(16)}, 40), {first, second}).report.cached_tokens, 0);
}

TEST(Simulator, TellsPreemptionsAndWaiting) {
  // 8 usable blocks of 16. The first two have 4 each when the first one needs a fifth: the second gives way. It comes
  // back when the first has ended, with 64 tokens in 4 blocks; the third starts in the other 4, and gives way at once.
  const auto [report, outcomes] =
      run(config_of({full(16)}, 9), {request(0, {Segment{1, 40}}, 40),  //
                                     request(0, {Segment{2, 40}}, 40), request(0, {Segment{3, 60}}, 4)});
  EXPECT_EQ(report.preemptions, 2);
  EXPECT_EQ(outcomes[1].preemptions, 1);
  EXPECT_EQ(outcomes[2].preemptions, 1);
  EXPECT_EQ(outcomes[1].output_tokens, 40);
  EXPECT_GT(outcomes[2].waited_steps, 30);
  EXPECT_EQ(report.blocks.max(), 8);
  EXPECT_GT(report.computed_tokens, 140 + 84 - 3);
}

TEST(Simulator, MoreImportantRequestsRunFirst) {
  auto config = config_of({full(16)}, 40);
  config.scheduler.policy = Policy::kPriority;
  config.scheduler.max_num_seqs = 1;
  TraceRequest urgent = request(0, {Segment{2, 10}}, 1);
  urgent.priority = -1;
  const auto outcomes = run(config, {request(0, {Segment{1, 10}}, 1), urgent}).outcomes;
  EXPECT_EQ(outcomes[1].waited_steps, 0);
  EXPECT_EQ(outcomes[0].waited_steps, 1);
}

TEST(Simulator, HoldsBackWhatTheQueueCannotTake) {
  auto config = config_of({full(16)}, 40);
  config.scheduler.max_num_seqs = 1;
  config.max_waiting = 2;
  std::vector<TraceRequest> requests(6, request(0, {Segment{1, 10}}, 1));
  const auto [report, outcomes] = run(config, requests);
  EXPECT_EQ(report.held_back, 4);
  EXPECT_EQ(report.requests, 6);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(outcomes[i].waited_ns, static_cast<int64_t>(i) * 1100);
  EXPECT_EQ(outcomes[5].waited_steps, 1);  // it joins as the fourth runs
}

TEST(Simulator, CutsAnswersAndRefusesPromptsThatCannotRun) {
  const auto [report, outcomes] =
      run(config_of({full(16)}, 9), {request(0, {Segment{1, int64_t{1} << 40}}, 1), request(0, {Segment{1, 256}}, 1),
                                     request(0, {Segment{1, 100}}, 30), request(0, {}, 5),
                                     request(0, {Segment{1, 20}}, int64_t{1} << 40), request(0, {Segment{1, 20}}, 1)});
  EXPECT_EQ(report.requests, 6);
  EXPECT_EQ(report.refused, 5);
  EXPECT_NE(report.first_refusal.find("request 0: the prompt has 1099511627776 tokens, it may have 255"),
            std::string::npos);
  EXPECT_TRUE(outcomes[2].refused);  // 130 tokens, 128 fit the pool
  EXPECT_TRUE(outcomes[3].refused);
  EXPECT_TRUE(outcomes[4].refused);
  EXPECT_EQ(outcomes[5].output_tokens, 1);

  const auto cut = run(config_of({full(16)}, 40), {request(0, {Segment{1, 250}}, 1000)});
  EXPECT_EQ(cut.report.output_tokens, 6);
}

TEST(Simulator, SaysWhatIsWrongWithATrace) {
  const auto error_of = [](std::vector<TraceRequest> requests) {
    const auto report = simulate(config_of({full(16)}, 40), source_of(std::move(requests)));
    return report ? std::string("accepted") : report.error().message;
  };
  EXPECT_NE(error_of({request(5, {Segment{1, 9}}, 1), request(4, {Segment{1, 9}}, 1)}).find("request 1 arrives before"),
            std::string::npos);
  EXPECT_NE(error_of({request(0, {Segment{1, 9}}, 0)}).find("request 0 has an empty answer"), std::string::npos);
  EXPECT_NE(error_of({request(-1, {Segment{1, 9}}, 1)}).find("request 0 arrives before"), std::string::npos);
  EXPECT_NE(error_of({request(INT64_MAX, {Segment{1, 9}}, 1)}).find("hundred years"), std::string::npos);
  int reads = 0;
  const auto report = simulate(config_of({full(16)}, 40), [&]() -> Result<std::optional<TraceRequest>> {
    if (reads++ == 0) return request(0, {Segment{1, 9}}, 1);
    return fail(ErrorKind::kCorruptFile, "line 2 is torn");
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message, "line 2 is torn");
}

TEST(Simulator, ChecksItsConfiguration) {
  const auto param_of = [](auto change) {
    auto config = config_of({full(16)}, 40);
    change(config);
    const auto report = simulate(config, source_of({}));
    return report                         ? std::string("accepted")
           : report.error().param.empty() ? report.error().message
                                          : report.error().param;
  };
  EXPECT_EQ(param_of([](auto&) {}), "accepted");
  EXPECT_EQ(param_of([](auto& c) { c.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(param_of([](auto& c) { c.step_seconds = 0; }), "step_seconds");
  EXPECT_EQ(param_of([](auto& c) { c.step_seconds = NAN; }), "step_seconds");
  EXPECT_EQ(param_of([](auto& c) { c.max_waiting = 0; }), "max_waiting");
  EXPECT_EQ(param_of([](auto& c) { c.cost.step_ns = -1; }), "step_ns");
  EXPECT_EQ(param_of([](auto& c) { c.cost.token_ns = INT64_MAX; }), "token_ns");
  EXPECT_EQ(param_of([](auto& c) { c.scheduler.max_num_seqs = 0; }), "max_num_seqs");
  EXPECT_EQ(param_of([](auto& c) { c.cache.num_blocks = 0; }), "num_blocks");
  EXPECT_NE(param_of([](auto& c) { c.scheduler.num_draft_tokens = 2; }).find("drafts"), std::string::npos);
  EXPECT_NE(param_of([](auto& c) { c.scheduler.overlapped = true; }).find("one step"), std::string::npos);
}

}  // namespace
}  // namespace quire::sched
