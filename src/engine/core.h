// The Core is the engine without its thread: requests in, one step at a time, updates out.
//
// plan -> forward -> sample -> publish. A request's answer depends on the request alone; which requests share a step,
// how their prompts are cut and what the cache holds decide only when it comes. A fault in one request ends that one.
// One thread at a time calls it, always the one that first called step().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/batch.h"
#include "engine/loaded_model.h"
#include "engine/mask_pool.h"
#include "exec/request_tables.h"
#include "quire/engine.h"
#include "sample/sampler.h"
#include "sched/scheduler.h"

namespace quire::engine {

// kInvalidRequest, naming the field, if the request can never run on this model.
Result<void> validate_request(const Request& request, const ModelInfo& info);

class Core {
 public:
  static Result<std::unique_ptr<Core>> create(std::unique_ptr<LoadedModel> model, const EngineOptions& options);

  using Clock = std::chrono::steady_clock;

  // The request must have passed validate_request(). An error (no room for it even alone) goes to its sink. `arrival`
  // is when it began to wait.
  void add(RequestId id, Request request, Engine::Sink sink, Clock::time_point arrival);
  void cancel(RequestId id);
  // Ends everything that is left: with kAborted, or with kError if there is an error, after which nothing cached is
  // trusted any more.
  void end_all(const std::optional<Error>& error);

  bool has_work() const { return scheduler_.has_work(); }
  // Computes one step, if there is work. An error is a fault of the engine, not of a request: end_all() then.
  Result<void> step();

  const ModelInfo& info() const { return model_->info; }
  // `used`: stats that are done with, whose memory becomes theirs.
  EngineStats stats(EngineStats used = {}) const;
  Result<void> integrity() const { return scheduler_.integrity(); }
  // For tests: what sees the logits of every row before they are used.
  using Probe = std::function<void(RequestId id, int64_t position, std::span<const float> logits)>;
  void set_probe(Probe probe) { probe_ = std::move(probe); }
  // Where the time of the next steps goes; null: they are not timed.
  void set_profile(exec::StepProfile* profile) { profile_ = profile; }
  const LoadedModel& model() const { return *model_; }
  const sched::Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Active {
    Request request;
    Engine::Sink sink;
    sample::TokenCounts counts;
    std::shared_ptr<MaskJob> mask = {};  // of a request with a constraint
    Clock::time_point arrival = {};
    Clock::time_point started = {};      // of the first step that ran it
    Clock::time_point first_token = {};  // all three: the clock's zero until then
    int64_t num_output = 0;
    int64_t cached_tokens = 0;
    int64_t next_prompt_row = -1;  // first position whose prompt log-probabilities are still missing; -1: none wanted
    std::vector<PositionLogprobs> prompt_logprobs = {};
    std::optional<CacheReport> cache_report = {};
  };

  Core(std::unique_ptr<LoadedModel> model, const EngineOptions& options, sched::Scheduler scheduler,
       exec::RequestTables tables);

  void use_logits(const exec::LogitsBlock& block);
  // A row of logits, what it is for, and what its worker has for it.
  struct Row {
    const LogitsUse& use;
    std::span<float> logits;
    sample::SampleScratch& scratch;
  };
  void use_row(const Row& row);
  void use_row_or_throw(Active& active, const Row& row, Update& update);
  void sample_row(Active& active, const Row& row, Update& update);
  void accept(Active& active, TokenId token, Update& update);
  void start(const sched::PlannedRequest& planned, Active& active, Clock::time_point now);
  void finish_pooling(const Active& active, const exec::BatchSequence& sequence, Update& update) const;
  void finish_step();
  void deliver(RequestId id, Update& update, bool ended, Clock::time_point now);
  void end(RequestId id, Update&& update);
  void count_step(int64_t tokens);
  bool stops(const Active& active, TokenId token) const;

  std::unique_ptr<LoadedModel> model_;
  EngineOptions options_;
  sched::Scheduler scheduler_;
  exec::RequestTables tables_;
  sched::StepBudget budget_;
  MaskPool masks_;
  std::unordered_map<RequestId, Active> active_;
  EngineStats counters_;
  Probe probe_;
  exec::StepProfile* profile_ = nullptr;

  // Of the current step; all of it is kept, so that a step in which requests only go on allocates nothing.
  sched::StepPlan plan_;
  exec::StepBatch batch_;
  std::vector<LogitsUse> uses_;
  std::vector<WantedLogits> wanted_;
  std::vector<int> first_rows_;                 // of each request in a block of logits
  std::vector<sample::SampleScratch> scratch_;  // one a worker
  std::vector<Update> updates_;                 // one for each planned request, or more
  std::vector<sched::RequestOutput> outputs_;
};

}  // namespace quire::engine
