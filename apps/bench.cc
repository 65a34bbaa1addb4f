// quire bench: prefill and decode speed of the engine alone, in the terms of llama-bench (pp: prompt processing, tg:
// token generation). Each figure is the median of the repetitions, after one run that is not counted. Profiles come
// from runs of their own, since they read clocks.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "commands.h"
#include "engine/core.h"
#include "engine/loaded_model.h"
#include "kernels/probe.h"
#include "profile_report.h"

namespace quire::apps {
namespace {

constexpr int kDecodePrompt = 16;

struct Figure {
  std::string name;
  std::vector<double> tokens_per_second;  // sorted
  double overhead_us = 0;                 // a step: planning, tables, delivery; all but forward pass and sampling
  std::optional<exec::StepProfile> profile = {};
  kernels::MachinePeaks peaks = {};
  double median() const { return tokens_per_second[tokens_per_second.size() / 2]; }
};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tokens spread over the vocabulary, different in every run, so that nothing is found in the prefix cache.
std::vector<TokenId> prompt(int tokens, int64_t vocab_size, uint64_t run) {
  std::vector<TokenId> ids;
  uint64_t state = run * 0x9E3779B97F4A7C15U + 1;
  for (int i = 0; i < tokens; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    ids.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

class Runner {
 public:
  explicit Runner(engine::Core& core) : core_(core) {}

  // Tokens a second: of the prompt, up to its first token, if one token is generated; else of all requests together
  // from the moment on when each has its first token, so that decoding is timed alone.
  double run(int requests, int prompt_tokens, int generated, exec::StepProfile* profile) {
    int started = 0, ended = 0;
    size_t tokens = 0;
    for (int i = 0; i < requests; ++i) {
      Request request;
      request.prompt = prompt(prompt_tokens, core_.info().vocab_size, ++runs_);
      request.sampling.temperature = 0;
      request.sampling.max_tokens = generated;
      request.sampling.ignore_eos = true;
      auto first = std::make_shared<bool>(true);
      core_.add(
          RequestId(++next_id_), std::move(request),
          [&started, &ended, &tokens, first](const Update& update) {
            tokens += update.tokens.size();
            if (*first) ++started;
            *first = false;
            if (update.finish != FinishReason::kNone) ++ended;
          },
          engine::Core::Clock::now());
    }
    if (generated == 1) core_.set_profile(profile);
    const double begin = now_seconds();
    while (started < requests) step();
    const double prefilled = now_seconds();
    core_.set_profile(nullptr);
    if (generated == 1) return prompt_tokens / (prefilled - begin);
    if (ended > 0)
      std::exit(report({ErrorKind::kInvalidRequest,
                        fmt::format("{} requests do not run together: some end before others begin; more KV cache or "
                                    "more tokens to generate are needed",
                                    requests)}));
    tokens = 0;
    core_.set_profile(profile);
    while (ended < requests) step();
    core_.set_profile(nullptr);
    return static_cast<double>(tokens) / (now_seconds() - prefilled);
  }

 private:
  void step() {
    if (auto done = core_.step(); !done) std::exit(report(done.error()));
  }

  engine::Core& core_;
  uint64_t next_id_ = 0;
  uint64_t runs_ = 0;
};

using Run = std::function<double(exec::StepProfile*)>;

// Of the fastest of the repetitions: what disturbs the machine disturbs that one least.
Result<void> profile(const engine::Core& core, int repetitions, const Run& run, Figure& figure) {
  Allocator allocator;
  const auto peaks = kernels::probe_peaks(core.model().kernels, *core.model().pool, allocator);
  if (!peaks) return std::unexpected(peaks.error());
  figure.peaks = *peaks;
  for (int i = 0; i < repetitions; ++i) {
    exec::StepProfile one;
    run(&one);
    if (!figure.profile || one.seconds() < figure.profile->seconds()) figure.profile = one;
  }
  return {};
}

Figure measure(const engine::Core& core, const std::string& name, const BenchFlags& flags, const Run& run) {
  run(nullptr);
  const EngineStats before = core.stats();
  Figure figure{name, {}};
  for (int i = 0; i < flags.repetitions; ++i) figure.tokens_per_second.push_back(run(nullptr));
  std::ranges::sort(figure.tokens_per_second);
  const EngineStats after = core.stats();
  figure.overhead_us =
      1e6 * (after.overhead_seconds - before.overhead_seconds) / static_cast<double>(after.steps - before.steps);
  if (flags.profile)
    if (auto done = profile(core, flags.repetitions, run, figure); !done) std::exit(report(done.error()));
  return figure;
}

void print(const std::vector<Figure>& figures, const BenchFlags& flags, const ModelInfo& info) {
  if (!flags.json) {
    fmt::print("{} ({}, {} threads)\n", flags.engine.model.string(), info.isa, info.threads);
    for (const Figure& f : figures) {
      fmt::print("{:>12}  {:9.1f} tokens/s  ({:.1f} .. {:.1f}), {:.0f} us a step outside the model\n", f.name,
                 f.median(), f.tokens_per_second.front(), f.tokens_per_second.back(), f.overhead_us);
      if (f.profile) fmt::print("{}", profile_table(*f.profile, f.peaks));
    }
    return;
  }
  nlohmann::json results = nlohmann::json::array();
  for (const Figure& f : figures) {
    results.push_back({{"name", f.name},
                       {"tokens_per_second", f.median()},
                       {"min", f.tokens_per_second.front()},
                       {"max", f.tokens_per_second.back()},
                       {"overhead_us_per_step", f.overhead_us}});
    if (f.profile) results.back()["profile"] = profile_json(*f.profile, f.peaks);
  }
  const nlohmann::json out = {
      {"model", flags.engine.model.string()}, {"isa", info.isa}, {"threads", info.threads}, {"results", results}};
  fmt::print("{}\n", out.dump(2));
}

// Requests that run together; of one token each, their prompts are timed.
struct Test {
  std::string name;
  int requests;
  int prompt;
  int generated;
  int64_t tokens() const { return int64_t{prompt} + generated; }
};

std::vector<Test> tests_of(const BenchFlags& flags) {
  std::vector<Test> tests;
  for (int prompt : flags.prompt_tokens)
    if (prompt > 0) tests.push_back({fmt::format("pp{}", prompt), 1, prompt, 1});
  const int generated = flags.generated_tokens;
  if (generated == 0) return tests;
  const std::string name = fmt::format("tg{}", generated);
  for (int batch : flags.batch)
    tests.push_back({batch == 1 ? name : fmt::format("{}@{}", name, batch), batch, kDecodePrompt, generated});
  for (int depth : flags.depth) tests.push_back({fmt::format("{}@d{}", name, depth), 1, depth, generated});
  return tests;
}

// Bytes of KV cache that the largest of the tests fills. With no more the warm-up has touched it all, and what is timed
// is an engine that has run for a while, not the kernel handing out pages.
Result<size_t> cache_of(const engine::OpenedModel& model, EngineOptions options, const std::vector<Test>& tests) {
  int64_t bytes = 0;
  for (const Test& test : tests) {
    options.max_model_len = test.tokens();
    auto outline = engine::outline_model(model, options);
    if (!outline) return std::unexpected(outline.error());
    const int64_t blocks = test.requests * outline->plan.request_blocks() + 1;  // and the null block
    bytes = std::max(bytes, blocks * outline->plan.bytes_per_block);
  }
  return static_cast<size_t>(bytes);
}

Result<std::unique_ptr<engine::Core>> load(const BenchFlags& flags, const std::vector<Test>& tests) {
  EngineOptions options = flags.engine;
  options.max_num_seqs = std::max(options.max_num_seqs, *std::ranges::max_element(flags.batch));
  auto opened = engine::open_model(options);
  if (!opened) return std::unexpected(opened.error());
  const int64_t longest = tests.empty() ? 1 : std::ranges::max(tests, {}, &Test::tokens).tokens();
  const int64_t allowed = std::min(options.max_model_len.value_or(longest), int64_t{opened->spec.max_positions});
  if (longest > allowed)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("{} tokens are more than the model's length of {}", longest, allowed));
  if (!options.kv_cache_bytes) {
    auto bytes = cache_of(*opened, options, tests);
    if (!bytes) return std::unexpected(bytes.error());
    options.kv_cache_bytes = *bytes;
    if (!options.max_model_len) options.max_model_len = longest;
  }
  auto model = engine::LoadedModel::load(*opened, options);
  if (!model) return std::unexpected(model.error());
  return engine::Core::create(std::move(*model), options);
}

}  // namespace

int bench(const BenchFlags& flags) {
  const std::vector<Test> tests = tests_of(flags);
  auto core = load(flags, tests);
  if (!core) return report(core.error());
  (*core)->model().pool->pin_caller();
  Runner runner(**core);
  std::vector<Figure> figures;
  for (const Test& test : tests)
    figures.push_back(measure(**core, test.name, flags, [&](exec::StepProfile* profile) {
      return runner.run(test.requests, test.prompt, test.generated, profile);
    }));
  print(figures, flags, (*core)->info());
  return 0;
}

}  // namespace quire::apps
