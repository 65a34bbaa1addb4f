#include "support/core_harness.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

namespace quire::test {
namespace {

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

std::unique_ptr<engine::Core> load_or_die(const EngineOptions& options) {
  auto model = engine::LoadedModel::load(options);
  if (!model) die("cannot load " + options.model.string() + ": " + model.error().message);
  auto core = engine::Core::create(std::move(*model), options);
  if (!core) die("cannot create the engine: " + core.error().message);
  return std::move(*core);
}

}  // namespace

CoreHarness::CoreHarness(EngineOptions options) : CoreHarness(load_or_die(options)) {}

CoreHarness::CoreHarness(std::unique_ptr<engine::Core> core) : core_(std::move(core)) {
  core_->set_probe([this](RequestId id, int64_t position, std::span<const float> logits) {
    Answer& answer = answers_.at(id.value);
    if (position >= answer.record_from) answer.logits[position].assign(logits.begin(), logits.end());
  });
}

uint64_t CoreHarness::add(Request request, int64_t record_from) {
  const uint64_t id = next_id_++;
  if (auto valid = engine::validate_request(request, core_->info()); !valid)
    die("bad request: " + valid.error().message);
  answers_[id].record_from = record_from;
  core_->add(
      RequestId(id), std::move(request),
      [this, id](Update update) {
        Answer& answer = answers_.at(id);
        answer.tokens.insert(answer.tokens.end(), update.tokens.begin(), update.tokens.end());
        for (auto& entry : update.logprobs) answer.logprobs.push_back(std::move(entry));
        for (auto& entry : update.prompt_logprobs) answer.prompt_logprobs.push_back(std::move(entry));
        if (!update.pooled.empty()) answer.pooled = std::move(update.pooled);
        if (update.finish != FinishReason::kNone) answer.finish = update.finish;
        if (update.error) answer.error = update.error;
        answer.cached_tokens = update.cached_tokens;
        if (update.times) answer.times = *update.times;
        if (update.cache_report) answer.cache_report = std::move(update.cache_report);
      },
      engine::Core::Clock::now());
  return id;
}

void CoreHarness::step() {
  if (poison_) poison();
  if (auto done = core_->step(); !done) die("step: " + done.error().message);
  if (auto sound = core_->integrity(); !sound) die("integrity: " + sound.error().message);
}

void CoreHarness::run() {
  // More steps than any test needs: a request that never gets on must fail, not hang.
  for (int steps = 0; core_->has_work(); ++steps) {
    if (steps > 100000) die("the engine makes no progress");
    step();
  }
}

std::vector<Answer> CoreHarness::run(std::vector<Request> requests) {
  std::vector<uint64_t> ids;
  for (auto& request : requests) ids.push_back(add(std::move(request)));
  run();
  std::vector<Answer> answers;
  for (uint64_t id : ids) answers.push_back(answers_.at(id));
  return answers;
}

// A block that nobody holds and the prefix index does not know may contain anything: bytes of all ones are NaN in every
// type. Whole blocks are overwritten, in every layer of every group.
void CoreHarness::poison() {
  const auto& storage = core_->model().storage;
  const cache::CachePlan& plan = storage.plan();
  const cache::BlockPool& pool = core_->scheduler().cache().pool();
  for (int32_t block = 1; block < plan.num_blocks; ++block) {
    if (pool.ref_count(BlockId(block)) > 0 || pool.index().is_published(BlockId(block))) continue;
    for (const auto& place : plan.layers) {
      const int64_t head_bytes = cache::states_per_block(place.spec) * place.spec.state_bytes;
      for (int64_t head = 0; head < place.spec.num_kv_heads; ++head)
        std::memset(storage.base() + place.offset + block * place.strides.block + head * place.strides.head, 0xff,
                    static_cast<size_t>(head_bytes));
    }
  }
}

Request greedy(std::vector<TokenId> prompt, int tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  return request;
}

Request pooled(std::vector<TokenId> prompt, std::vector<TokenId> probabilities_of) {
  return {.prompt = std::move(prompt), .pooling = Pooling{.probabilities_of = std::move(probabilities_of)}};
}

std::string golden_dir() {
  const char* other = std::getenv("QUIRE_GOLDEN_DIR");
  return other != nullptr && *other != '\0' ? other : std::string(QUIRE_TEST_DATA) + "/models";
}

std::string real_model(const std::string& file) {
  const char* dir = std::getenv("QUIRE_MODEL_DIR");
  if (dir == nullptr) return {};
  const std::string path = std::string(dir) + "/" + file;
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace quire::test
