// The embedding API under threads: queueing, cancelling, bounds, faults of single requests, and the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/loaded_model.h"
#include "quire/engine.h"
#include "support/core_harness.h"

namespace quire::test {
namespace {

EngineOptions tiny(const std::string& model = golden_dir() + "/llama_untied") {
  EngineOptions options;
  options.model = model;
  options.kv_cache_bytes = size_t{16} << 20;
  options.threads = 2;
  options.check_integrity = true;
  return options;
}

// Collects the updates of one request; wait() returns when it has ended.
class Collector {
 public:
  Engine::Sink sink() {
    return [this](Update update) {
      std::lock_guard lock(mutex_);
      EXPECT_EQ(answer_.finish, FinishReason::kNone) << "an update after the end";
      answer_.tokens.insert(answer_.tokens.end(), update.tokens.begin(), update.tokens.end());
      answer_.finish = update.finish;
      answer_.error = std::move(update.error);
      changed_.notify_all();
    };
  }
  Answer wait() {
    std::unique_lock lock(mutex_);
    const bool ended =
        changed_.wait_for(lock, std::chrono::seconds(120), [&] { return answer_.finish != FinishReason::kNone; });
    EXPECT_TRUE(ended);
    return answer_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(120), [&] { return answer_.tokens.size() >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Answer answer_;
};

// The engine counts a step's results right after it delivers them.
void expect_idle(const Engine& engine) {
  EngineStats stats = engine.stats();
  for (int i = 0; i < 10000 && (stats.running > 0 || stats.waiting > 0 || stats.kv_cache_usage > 0); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = engine.stats();
  }
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.kv_cache_usage, 0);
}

TEST(Engine, ManyThreadsGetTheAnswersOfOne) {
  auto engine = *Engine::load(tiny());
  std::vector<std::vector<TokenId>> alone;
  for (int i = 0; i < 8; ++i) {
    Collector collector;
    ASSERT_TRUE(engine->submit(greedy({5, 6, i}, 12), collector.sink()));
    alone.push_back(collector.wait().tokens);
  }
  std::vector<std::jthread> clients;
  for (int i = 0; i < 8; ++i)
    clients.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        Collector collector;
        ASSERT_TRUE(engine->submit(greedy({5, 6, i}, 12), collector.sink()));
        EXPECT_EQ(collector.wait().tokens, alone[static_cast<size_t>(i)]);
      }
    });
  clients.clear();
  expect_idle(*engine);
}

TEST(Engine, ACancelledRequestEndsAndGivesItsBlocksBack) {
  auto engine = *Engine::load(tiny());
  Collector collector, other;
  const auto id = engine->submit(greedy({1, 2, 3}, 400), collector.sink());
  ASSERT_TRUE(id);
  ASSERT_TRUE(engine->submit(greedy({1, 2, 4}, 30), other.sink()));
  collector.wait_for_tokens(2);
  engine->cancel(*id);
  const Answer answer = collector.wait();
  EXPECT_EQ(answer.finish, FinishReason::kAborted);
  EXPECT_LT(answer.tokens.size(), 400U);
  EXPECT_EQ(other.wait().finish, FinishReason::kLength);
  engine->cancel(*id);     // again: nothing happens
  engine->cancel(123456);  // unknown: nothing happens
  Collector after;
  ASSERT_TRUE(engine->submit(greedy({9}, 2), after.sink()));
  EXPECT_EQ(after.wait().tokens.size(), 2U);
  expect_idle(*engine);
}

TEST(Engine, TheWaitingQueueIsBounded) {
  EngineOptions options = tiny();
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 16;
  options.max_waiting_requests = 3;
  auto engine = *Engine::load(options);
  std::vector<std::unique_ptr<Collector>> collectors;
  int refused = 0;
  for (int i = 0; i < 50; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    const auto id = engine->submit(greedy({1, 2, 3}, 100), collectors.back()->sink());
    if (id) continue;
    EXPECT_EQ(id.error().kind, ErrorKind::kExhausted);
    collectors.pop_back();
    ++refused;
  }
  EXPECT_GT(refused, 0);
  for (auto& collector : collectors) EXPECT_EQ(collector->wait().finish, FinishReason::kLength);
}

TEST(Engine, DestroyingItEndsWhatRuns) {
  Collector first, second;
  {
    auto engine = *Engine::load(tiny());
    ASSERT_TRUE(engine->submit(greedy({1, 2, 3}, 450), first.sink()));
    ASSERT_TRUE(engine->submit(greedy({4}, 450), second.sink()));
    first.wait_for_tokens(1);
  }
  EXPECT_EQ(first.wait().finish, FinishReason::kAborted);
  EXPECT_EQ(second.wait().finish, FinishReason::kAborted);
}

TEST(Engine, RefusesWhatCannotRunAndNamesTheField) {
  auto engine = *Engine::load(tiny());
  const auto refused = [&](Request request) {
    Collector collector;
    const auto id = engine->submit(std::move(request), collector.sink());
    return id ? std::string() : id.error().param;
  };
  EXPECT_EQ(refused(greedy({}, 1)), "prompt");
  EXPECT_EQ(refused(greedy({-1}, 1)), "prompt");
  EXPECT_EQ(refused(greedy({300}, 1)), "prompt");
  EXPECT_EQ(refused(greedy(std::vector<TokenId>(512, 1), 1)), "prompt");
  Request hot = greedy({1}, 1);
  hot.sampling.top_p = 2;
  EXPECT_EQ(refused(hot), "top_p");
  EXPECT_EQ(refused(pooled({})), "prompt");
  EXPECT_EQ(refused(pooled(std::vector<TokenId>(513, 1))), "prompt");
  EXPECT_EQ(refused(pooled({1}, {300})), "probabilities_of");
  EXPECT_EQ(refused(pooled({1}, {-1})), "probabilities_of");
}

TEST(Engine, PoolsPromptsAsLongAsTheModel) {
  EngineOptions options = tiny();
  options.max_num_batched_tokens = 100;
  CoreHarness harness(options);
  const std::vector<TokenId> prompt(512, 9);
  Request explained = pooled(prompt);
  explained.explain_cache = true;
  explained.sampling.prompt_logprobs = 3;  // does not count
  const Answer cold = harness.run({explained}).front();
  ASSERT_EQ(cold.pooled.size(), static_cast<size_t>(harness.core().info().hidden_size));
  EXPECT_EQ(cold.finish, FinishReason::kStop);
  EXPECT_TRUE(cold.tokens.empty() && cold.prompt_logprobs.empty() && cold.logits.empty());
  EXPECT_TRUE(cold.cache_report);
  EXPECT_GT(cold.times.prefill, 0);
  EXPECT_EQ(cold.times.decode, 0);
  const Answer warm = harness.run({pooled(prompt)}).front();
  EXPECT_GT(warm.cached_tokens, 400);
  EXPECT_EQ(warm.pooled, cold.pooled);
  const EngineStats stats = harness.core().stats();
  EXPECT_EQ(stats.finished_stop, 2U);
  EXPECT_EQ(stats.generation_tokens, 0U);
  EXPECT_EQ(stats.prompt_tokens, 1024U);
}

// The logits are those from which an answer's first token is chosen.
TEST(Engine, PoolsTheProbabilitiesOfTokens) {
  CoreHarness harness(tiny());
  const auto answers = harness.run({greedy({1, 2, 3}, 1), pooled({1, 2, 3}, {250, 4})});
  const std::vector<float>& logits = answers[0].logits.at(2);
  const double a = std::exp(logits[250]), b = std::exp(logits[4]);
  ASSERT_EQ(answers[1].pooled.size(), 2U);
  EXPECT_NEAR(answers[1].pooled[0], a / (a + b), 1e-6);
  EXPECT_NEAR(answers[1].pooled[1], b / (a + b), 1e-6);
}

std::vector<TokenId> up_to_first(const std::vector<TokenId>& tokens, TokenId token) {
  const auto first = std::find(tokens.begin(), tokens.end(), token);
  return {tokens.begin(), first == tokens.end() ? first : first + 1};
}

TEST(Engine, AStopTokenEndsTheAnswerAndIsItsLast) {
  CoreHarness harness(tiny());
  const std::vector<TokenId> tokens = harness.run({greedy({1, 2, 3}, 20)}).front().tokens;
  Request request = greedy({1, 2, 3}, 20);
  request.sampling.stop_token_ids = {tokens[4]};
  const Answer stopped = harness.run({request}).front();
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, up_to_first(tokens, tokens[4]));
}

// The model's end token is 2; bias makes it the most likely at once.
TEST(Engine, AnEndTokenStopsUnlessIgnoredOrTooEarly) {
  CoreHarness harness(tiny());
  Request request = greedy({1, 2, 3}, 6);
  request.sampling.logit_bias = {{2, 100}};
  EXPECT_EQ(harness.run({request}).front().tokens, std::vector<TokenId>(6, 2));

  request.sampling.ignore_eos = false;
  const Answer stopped = harness.run({request}).front();
  EXPECT_EQ(stopped.tokens, std::vector<TokenId>{2});
  EXPECT_EQ(stopped.finish, FinishReason::kStop);

  request.sampling.min_tokens = 3;
  const Answer late = harness.run({request}).front();
  ASSERT_EQ(late.tokens.size(), 4U);
  EXPECT_EQ(late.tokens.back(), 2);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(late.tokens[i], 2);
}

// Prompt log-probabilities, penalties and seeded sampling, alone and where every request is preempted, chunked and
// finds its prompt cached.
TEST(Engine, LogProbabilitiesAndSamplesDoNotDependOnHowTheyAreRun) {
  std::vector<Request> requests;
  for (TokenId i = 0; i < 5; ++i) {
    std::vector<TokenId> prompt(static_cast<size_t>(90 + 20 * i));
    for (size_t p = 0; p < prompt.size(); ++p) prompt[p] = static_cast<TokenId>((p * 7 + static_cast<size_t>(i)) % 290);
    Request request = greedy(std::move(prompt), 40);
    request.sampling.temperature = 0.9F;
    request.sampling.seed = 17 + static_cast<uint64_t>(i);
    request.sampling.repetition_penalty = 1.2F;
    request.sampling.frequency_penalty = 0.3F;
    request.sampling.logprobs = 2;
    if (i % 2 == 0) request.sampling.prompt_logprobs = 2;
    requests.push_back(std::move(request));
  }
  std::vector<Answer> alone;
  CoreHarness quiet(tiny());
  for (const Request& request : requests) alone.push_back(quiet.run({request}).front());

  EngineOptions options = tiny();
  options.max_model_len = 256;
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 48;
  for (size_t bytes = size_t{1} << 14;; bytes += size_t{1} << 14) {
    ASSERT_LT(bytes, size_t{16} << 20);
    options.kv_cache_bytes = bytes;
    if (engine::LoadedModel::load(options)) break;
  }
  CoreHarness busy(options);
  for (int round = 0; round < 2; ++round) {
    const auto answers = busy.run(requests);
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, alone[i].tokens);
      const auto same = [](const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
        return std::ranges::equal(a, b, [](const PositionLogprobs& x, const PositionLogprobs& y) {
          return x.token.token == y.token.token && x.token.logprob == y.token.logprob && x.token.rank == y.token.rank &&
                 std::ranges::equal(x.top, y.top, [](const TokenLogprob& s, const TokenLogprob& t) {
                   return s.token == t.token && s.logprob == t.logprob;
                 });
        });
      };
      EXPECT_TRUE(same(answers[i].logprobs, alone[i].logprobs));
      EXPECT_TRUE(same(answers[i].prompt_logprobs, alone[i].prompt_logprobs));
      EXPECT_EQ(answers[i].prompt_logprobs.size(), i % 2 == 0 ? requests[i].prompt.size() - 1 : 0);
    }
  }
  EXPECT_GT(busy.core().stats().preemptions, 0U);
}

TEST(Engine, TellsHowLongRequestsWaitedAndRan) {
  EngineOptions options = tiny();
  options.max_num_seqs = 1;
  options.prefix_caching = false;
  CoreHarness harness(options);
  const uint64_t first = harness.add(greedy({1, 2, 3}, 5));
  const uint64_t second = harness.add(greedy({4, 5}, 1));
  harness.run();
  const RequestTimes times = harness.answer(first).times;
  const RequestTimes waited = harness.answer(second).times;
  EXPECT_GE(times.queue, 0);
  EXPECT_GT(times.prefill, 0);
  EXPECT_GT(times.decode, 0);
  EXPECT_GE(waited.queue, times.inference());  // it came before the first one ran, and ran after that had ended
  EXPECT_GT(waited.prefill, 0);
  EXPECT_EQ(waited.decode, 0);
  const EngineStats stats = harness.core().stats();
  EXPECT_EQ(stats.steps, 6U);
  EXPECT_EQ(stats.step_tokens, 3U + 4 + 2);
  EXPECT_EQ(stats.steps_by_tokens[0], 4U);  // of one token
  EXPECT_EQ(stats.steps_by_tokens[1], 2U);  // of 2 to 8
}

TEST(Engine, ExplainsItsCacheWhereAsked) {
  EngineOptions options = tiny(golden_dir() + "/gemma3");
  CoreHarness harness(options);
  std::vector<TokenId> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i + 1);
  Request request = greedy(prompt, 4);
  const auto ask = [&] {
    request.explain_cache = true;
    return harness.run({request}).front();
  };
  EXPECT_FALSE(harness.run({greedy({1, 2, 3}, 4)}).front().cache_report.has_value());
  const Answer cold = ask();
  ASSERT_TRUE(cold.cache_report.has_value());
  EXPECT_EQ(cold.cache_report->minimum_reuse_tokens, harness.core().info().minimum_reuse_tokens);
  EXPECT_EQ(cold.cache_report->groups.size(), harness.core().info().cache_groups.size());
  for (const GroupReport& group : cold.cache_report->groups) {
    EXPECT_EQ(group.misses.front(), (CacheMiss{0, 96, MissReason::kNeverSeen}));
  }
  const Answer warm = ask();
  EXPECT_EQ(warm.cached_tokens, 96);
  for (const GroupReport& group : warm.cache_report->groups) EXPECT_EQ(group.hit_tokens, 96);
  request.sampling.prompt_logprobs = 0;
  EXPECT_EQ(ask().cache_report->groups.front().misses, (std::vector{CacheMiss{0, 100, MissReason::kNotLookedUp}}));
}

TEST(Engine, ASinkForEveryRequest) {
  auto engine = *Engine::load(tiny());
  EXPECT_EQ(engine->submit(greedy({1}, 1), {}).error().param, "sinks");
  EXPECT_EQ(engine->submit_all({greedy({1}, 1), greedy({2}, 1)}, {}).error().param, "sinks");
}

// A copy of the untied Llama whose embedding of token 7 is not a number.
std::filesystem::path model_with_a_poisoned_token() {
  const std::filesystem::path from = golden_dir() + "/llama_untied";
  const auto to = std::filesystem::temp_directory_path() / ("quire_poisoned_" + std::to_string(getpid()));
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(from / "config.json", to / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::ifstream in(from / "model.safetensors", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const auto& entry = header["model.embed_tokens.weight"];
  const size_t row_bytes = entry["shape"][1].get<size_t>() * 2;
  const size_t at = 8 + header_size + entry["data_offsets"][0].get<size_t>() + 7 * row_bytes;
  for (size_t i = 0; i < row_bytes; i += 2) bytes.replace(at + i, 2, "\xc0\x7f", 2);
  std::ofstream(to / "model.safetensors", std::ios::binary) << bytes;
  return to;
}

TEST(Engine, AFaultInOneRequestEndsThatRequestAlone) {
  const auto folder = model_with_a_poisoned_token();
  {
    for (Profile profile : {Profile::kBF16, Profile::kF32}) {
      EngineOptions options = tiny(folder);
      options.profile = profile;
      CoreHarness harness(options);
      const Answer alone = harness.run({greedy({1, 2, 3}, 10)}).front();
      const auto answers = harness.run({greedy({1, 2, 3}, 10), greedy({1, 7, 3}, 10), greedy({4, 5, 6}, 10)});
      EXPECT_EQ(answers[0].tokens, alone.tokens);
      EXPECT_EQ(answers[1].finish, FinishReason::kError);
      ASSERT_TRUE(answers[1].error);
      EXPECT_EQ(answers[1].error->kind, ErrorKind::kInternal);
      EXPECT_EQ(answers[2].finish, FinishReason::kLength);
      const auto numbers = harness.run({pooled({1, 2, 3}), pooled({1, 7, 3}), pooled({1, 7, 3}, {2})});
      EXPECT_EQ(numbers[0].finish, FinishReason::kStop);
      for (const Answer* broken : {&numbers[1], &numbers[2]}) {
        ASSERT_TRUE(broken->error);
        EXPECT_EQ(broken->error->kind, ErrorKind::kInternal);
        EXPECT_TRUE(broken->pooled.empty());
      }
      EXPECT_EQ(harness.core().stats().kv_cache_usage, 0);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(Load, ALengthBeyondTheModelsOwnIsLowered) {
  EngineOptions options = tiny();
  options.max_model_len = 100000;
  EXPECT_EQ((*Engine::load(options))->info().max_model_len, 512);
}

// Of 1,000 bytes that are free the weights may take 900.
TEST(Load, ExpertsLeaveMemoryWhereWeightsDoNotFit) {
  using engine::offloads_experts;
  const model::WeightMemory fits{900, 800}, too_large{901, 800}, dense{901, 0};
  EXPECT_FALSE(*offloads_experts(ExpertOffload::kAuto, fits, 1000));
  EXPECT_TRUE(*offloads_experts(ExpertOffload::kAuto, too_large, 1000));
  EXPECT_FALSE(*offloads_experts(ExpertOffload::kAuto, dense, 1000));
  EXPECT_FALSE(*offloads_experts(ExpertOffload::kNever, too_large, 1000));
  EXPECT_TRUE(*offloads_experts(ExpertOffload::kAlways, fits, 1000));
  EXPECT_EQ(offloads_experts(ExpertOffload::kAlways, dense, 1000).error().param, "offload_experts");
}

bool maps_a_file_without_a_name() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/quire-") != std::string::npos && line.ends_with("(deleted)")) return true;
  return false;
}

TEST(Load, ExpertsInAFileGiveTheBitsOfThoseInMemory) {
  for (const char* name : {"qwen3_moe", "gpt_oss_mxfp4", "gguf/random_qwen3_moe.gguf"}) {
    SCOPED_TRACE(name);
    EngineOptions options = tiny(std::string(QUIRE_TEST_DATA) + "/models/" + name);
    options.offload_dir = QUIRE_SOURCE_DIR;
    std::vector<std::vector<std::vector<float>>> logits;
    std::vector<ModelInfo> info;
    for (ExpertOffload offload : {ExpertOffload::kNever, ExpertOffload::kAlways}) {
      options.expert_offload = offload;
      CoreHarness harness(options);
      auto& rows = logits.emplace_back();
      for (const Answer& answer : harness.run({greedy({5, 6, 7, 8}, 8), greedy({9}, 8)}))
        for (const auto& [position, row] : answer.logits) rows.push_back(row);
      ASSERT_GE(rows.size(), 16U);
      info.push_back(harness.core().info());
      EXPECT_EQ(maps_a_file_without_a_name(), offload == ExpertOffload::kAlways);
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_EQ(info[0].fingerprint, info[1].fingerprint);
    EXPECT_EQ(info[0].weight_bytes, info[1].weight_bytes);
  }
}

TEST(Load, SaysWhatIsWrong) {
  const auto message = [](EngineOptions options) {
    auto engine = Engine::load(std::move(options));
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_NE(message(tiny("/nonexistent/model")).find("/nonexistent/model"), std::string::npos);
  EngineOptions options = tiny();
  options.max_model_len = 512;
  options.kv_cache_bytes = 100000;
  EXPECT_NE(message(options), "");
  options = tiny();
  options.kv_cache_bytes = size_t{1} << 60;
  EXPECT_NE(message(options).find("kv_cache_memory_bytes"), std::string::npos);
  options = tiny();
  options.expert_offload = ExpertOffload::kAlways;
  EXPECT_NE(message(options).find("offload_experts"), std::string::npos);
  options.model = golden_dir() + "/qwen3_moe";
  options.offload_dir = "/nonexistent/folder";
  EXPECT_NE(message(options).find("/nonexistent/folder"), std::string::npos);
  options = tiny();
  options.block_size = 40;
  EXPECT_NE(message(options).find("block_size"), std::string::npos);
  options = tiny();
  options.kv_cache_layout = "HBLNC";
  EXPECT_NE(message(options).find("LBHNC"), std::string::npos);
  options = tiny();
  options.max_num_seqs = 64;
  options.max_num_batched_tokens = 32;
  EXPECT_NE(message(options).find("max_num_batched_tokens"), std::string::npos);
}

}  // namespace
}  // namespace quire::test
