#include "engine/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "kernels/math.h"

namespace quire::engine {
namespace {

// At most this many evicted keys are remembered for reports: some 5 MiB.
constexpr int64_t kRememberedEvictions = 1 << 16;

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

// They help the pool's workers, who compute what none of them has begun.
constexpr int kMaskThreads = 2;

Result<void> validate_pooling(const Pooling& pooling, int64_t length, const ModelInfo& info) {
  if (length > info.max_model_len)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("the prompt has {} tokens; the model's length is {} tokens", length, info.max_model_len),
                "prompt");
  for (TokenId id : pooling.probabilities_of)
    if (id < 0 || id >= info.vocab_size)
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("probabilities_of holds token {}; the vocabulary has {}", id, info.vocab_size),
                  "probabilities_of");
  return {};
}

void softmax(std::span<float> logits) {
  const float greatest = std::ranges::max(logits);
  float sum = 0;
  for (float& x : logits) sum += x = kernels::exp(x - greatest);
  for (float& x : logits) x /= sum;
}

// An empty update in the memory of one that is done with.
void renew(Update& update) {
  Update empty;
  empty.tokens = std::move(update.tokens);
  empty.tokens.clear();
  update = std::move(empty);
}

}  // namespace

Result<void> validate_request(const Request& request, const ModelInfo& info) {
  if (request.prompt.empty()) return fail(ErrorKind::kInvalidRequest, "prompt must not be empty", "prompt");
  for (TokenId id : request.prompt)
    if (id < 0 || id >= info.vocab_size)
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("prompt holds token {}; the vocabulary has {}", id, info.vocab_size), "prompt");
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (request.pooling) return validate_pooling(*request.pooling, length, info);
  if (length >= info.max_model_len)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("the prompt has {} tokens; the model's length is {} tokens, with room for at least one of "
                            "the answer",
                            length, info.max_model_len),
                "prompt");
  if (request.constraint && request.constraint->vocab_size() != info.vocab_size)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("constraint is for a vocabulary of {}; this model's has {}",
                            request.constraint->vocab_size(), info.vocab_size),
                "constraint");
  return sample::validate(request.sampling, info.vocab_size);
}

Result<std::unique_ptr<Core>> Core::create(std::unique_ptr<LoadedModel> model, const EngineOptions& options) {
  const cache::CachePlan& plan = model->storage.plan();
  cache::CoordinatorConfig cache =
      cache::coordinator_config(plan, {.max_in_flight_tokens = options.max_num_batched_tokens}, options.prefix_caching);
  cache.remembered_evictions = std::min(4 * plan.num_blocks, kRememberedEvictions);
  cache.retention.keep = cache::RetentionPolicy::Keep::kTurnEnds;
  sched::SchedulerConfig config;
  config.max_num_seqs = options.max_num_seqs;
  config.hash_root = model->cache_root;
  if (options.priority_scheduling) config.policy = sched::Policy::kPriority;
  auto scheduler = sched::Scheduler::create(config, std::move(cache));
  if (!scheduler) return std::unexpected(scheduler.error());
  auto tables = exec::RequestTables::make(plan, options.max_num_seqs);
  if (!tables) return std::unexpected(tables.error());
  return std::unique_ptr<Core>(new Core(std::move(model), options, std::move(*scheduler), std::move(*tables)));
}

Core::Core(std::unique_ptr<LoadedModel> model, const EngineOptions& options, sched::Scheduler scheduler,
           exec::RequestTables tables)
    : model_(std::move(model)),
      options_(options),
      scheduler_(std::move(scheduler)),
      tables_(std::move(tables)),
      budget_(std::chrono::duration<double>(options.step_time).count(), options.max_num_batched_tokens),
      masks_(kMaskThreads) {
  for (int worker = 0; worker < model_->pool->size(); ++worker) scratch_.emplace_back(model_->info.vocab_size);
}

void Core::add(RequestId id, Request request, Engine::Sink sink, Clock::time_point arrival) {
  sched::RequestInit init;
  init.id = id;
  init.prompt = request.prompt;
  init.max_tokens = request.pooling ? 0 : request.sampling.max_tokens;
  init.priority = request.priority;
  init.keys.cache_salt = request.cache_salt;
  init.explain = request.explain_cache;
  init.skip_prefix_lookup = !request.pooling && request.sampling.prompt_logprobs;
  Active active{.request = std::move(request), .sink = std::move(sink), .counts = {{}, {}}, .arrival = arrival};
  if (!active.request.pooling) {
    active.counts = sample::TokenCounts(active.request.sampling, active.request.prompt);
    if (active.request.constraint) active.mask = std::make_shared<MaskJob>(active.request.constraint);
    if (active.request.sampling.prompt_logprobs) active.next_prompt_row = 0;
  }
  const auto prompt_tokens = active.request.prompt.size();
  if (auto added = scheduler_.add(std::move(init)); !added) {
    ++counters_.finished_error;
    active.sink({.finish = FinishReason::kError, .error = added.error()});
    return;
  }
  counters_.prompt_tokens += prompt_tokens;
  active_.emplace(id, std::move(active));
}

void Core::cancel(RequestId id) {
  if (!active_.contains(id)) return;
  scheduler_.abort(id);
  ++counters_.finished_abort;
  end(id, {.finish = FinishReason::kAborted});
}

void Core::end_all(const std::optional<Error>& error) {
  while (!active_.empty()) {
    const RequestId id = active_.begin()->first;
    scheduler_.abort(id);
    ++(error ? counters_.finished_error : counters_.finished_abort);
    end(id, {.finish = error ? FinishReason::kError : FinishReason::kAborted, .error = error});
  }
  if (error) scheduler_.forget_prefixes();
}

void Core::end(RequestId id, Update&& update) {
  auto node = active_.extract(id);
  if (!node.empty()) node.mapped().sink(std::move(update));
}

Result<void> Core::step() {
  const auto start = Clock::now();
  if (profile_ != nullptr) profile_->resume();
  const sched::TokenBudget budget = budget_.next(scheduler_.num_decoding(), scheduler_.num_requests() == 1);
  plan_ = scheduler_.schedule(budget, seconds(start.time_since_epoch()), std::move(plan_));
  if (plan_.requests.empty()) {
    tables_.update(plan_);
    return {};
  }
  for (const auto& copy : plan_.copies) model_->storage.copy_block(copy.group, copy.source, copy.target);

  wanted_.clear();
  for (const auto& planned : plan_.requests) {
    Active& active = active_.at(planned.id);
    if (planned.first && !planned.resumed) this->start(planned, active, start);
    const auto& pooling = active.request.pooling;
    wanted_.push_back(
        {.prompt_from = active.next_prompt_row, .samples = !pooling || !pooling->probabilities_of.empty()});
    if (active.mask && planned.samples) {
      active.mask->want();
      masks_.add(active.mask);
    }
  }
  build_batch(plan_, scheduler_, wanted_, tables_, batch_, uses_);
  model_->attention.prepare(batch_, model_->kernels, model_->pool->size());
  updates_.resize(std::max(updates_.size(), plan_.requests.size()));
  for (Update& update : updates_) renew(update);

  if (profile_ != nullptr) {
    profile_->charge(exec::Operator::kOutside);
    profile_->count(exec::work_of_step(model_->model, model_->kernels, batch_, model_->attention));
    profile_->resume();
  }

  const auto forward = Clock::now();
  model_->forward->run(batch_, model_->attention, [&](const exec::LogitsBlock& block) { use_logits(block); }, profile_);
  const auto forward_end = Clock::now();

  finish_step();
  if (profile_ != nullptr) profile_->charge(exec::Operator::kOutside);
  const auto end = Clock::now();
  budget_.observe(plan_.total_tokens, seconds(end - start));
  count_step(plan_.total_tokens);
  counters_.step_seconds += seconds(end - start);
  counters_.overhead_seconds += seconds((end - start) - (forward_end - forward));
  if (options_.check_integrity) return scheduler_.integrity();
  return {};
}

// The first step of a request.
void Core::start(const sched::PlannedRequest& planned, Active& active, Clock::time_point now) {
  active.started = now;
  active.cache_report = scheduler_.find(planned.id)->report;
  active.cached_tokens = planned.num_cached;
  counters_.prompt_tokens_cached += static_cast<uint64_t>(planned.num_cached);
  const auto room = model_->info.max_model_len - static_cast<int64_t>(active.request.prompt.size());
  active.counts.reserve(static_cast<size_t>(std::min<int64_t>(room, active.request.sampling.max_tokens)));
}

void Core::count_step(int64_t tokens) {
  ++counters_.steps;
  counters_.step_tokens += static_cast<uint64_t>(tokens);
  const auto bound = std::ranges::lower_bound(kStepTokenBounds, tokens);
  ++counters_.steps_by_tokens[static_cast<size_t>(bound - kStepTokenBounds.begin())];
}

void Core::use_logits(const exec::LogitsBlock& block) {
  const auto vocab = static_cast<size_t>(model_->info.vocab_size);
  // Rows of one request change its state in order, so a request's rows stay on one worker.
  first_rows_.clear();
  for (int i = 0; i < block.count; ++i)
    if (i == 0 ||
        uses_[static_cast<size_t>(block.first + i)].request != uses_[static_cast<size_t>(block.first + i - 1)].request)
      first_rows_.push_back(i);
  model_->pool->split(static_cast<int>(first_rows_.size()), [&](int worker, int begin, int end) {
    const int last =
        static_cast<size_t>(end) < first_rows_.size() ? first_rows_[static_cast<size_t>(end)] : block.count;
    for (int i = first_rows_[static_cast<size_t>(begin)]; i < last; ++i)
      use_row({uses_[static_cast<size_t>(block.first + i)],
               {block.logits + static_cast<size_t>(i) * vocab, vocab},
               scratch_[static_cast<size_t>(worker)]});
  });
}

void Core::use_row(const Row& row) {
  const RequestId id = plan_.requests[row.use.request].id;
  Update& update = updates_[row.use.request];
  if (probe_) probe_(id, row.use.position, row.logits);
  Active& active = active_.at(id);
  if (update.error) return;
  try {
    use_row_or_throw(active, row, update);
  } catch (const std::exception& e) {  // out of memory: this request ends, the workers go on
    update.error = Error{ErrorKind::kExhausted, std::string("a step failed: ") + e.what()};
  }
}

void Core::use_row_or_throw(Active& active, const Row& row, Update& update) {
  const auto next = static_cast<size_t>(row.use.position + 1);
  if (active.next_prompt_row == row.use.position && next < active.request.prompt.size()) {
    active.prompt_logprobs.push_back(sample::log_probabilities(model_->kernels, row.logits, active.request.prompt[next],
                                                               *active.request.sampling.prompt_logprobs));
    ++active.next_prompt_row;
  }
  if (!row.use.samples) return;
  const auto& pooling = active.request.pooling;
  if (!pooling) return sample_row(active, row, update);
  for (const TokenId token : pooling->probabilities_of) update.pooled.push_back(row.logits[static_cast<size_t>(token)]);
}

void Core::sample_row(Active& active, const Row& row, Update& update) {
  const SamplingParams& params = active.request.sampling;
  sample::SampleContext context{.params = &params,
                                .counts = &active.counts,
                                .end_tokens = model_->info.end_tokens,
                                .num_output = active.num_output,
                                .position = row.use.position + 1};
  if (active.mask) {
    const auto mask = active.mask->take();
    if (!mask) {
      update.error = mask.error();
      return;
    }
    context.mask = *mask;
  }
  std::vector<float> raw;
  if (params.logprobs && !sample::leaves_logits(context)) raw.assign(row.logits.begin(), row.logits.end());
  const auto token = sample::sample(model_->kernels, row.logits, context, row.scratch);
  if (!token) {
    update.error = token.error();
    return;
  }
  if (params.logprobs)
    update.logprobs.push_back(sample::log_probabilities(
        model_->kernels, raw.empty() ? std::span<const float>(row.logits) : raw, *token, *params.logprobs));
  if (active.mask) accept(active, *token, update);
  active.counts.add_output(*token);
  ++active.num_output;
  update.tokens.push_back(*token);
}

// A constraint that nothing may follow ends the answer.
void Core::accept(Active& active, TokenId token, Update& update) {
  const auto finished = active.mask->accept(token);
  if (!finished) update.error = finished.error();
  if (finished && *finished) update.finish = FinishReason::kStop;
}

bool Core::stops(const Active& active, TokenId token) const {
  const SamplingParams& params = active.request.sampling;
  if (std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end()) return true;
  if (params.ignore_eos && !active.mask) return false;
  return std::ranges::find(model_->info.end_tokens, token) != model_->info.end_tokens.end();
}

// `sequence`: the request's rows in this step, up to its prompt's last.
void Core::finish_pooling(const Active& active, const exec::BatchSequence& sequence, Update& update) const {
  const auto& pooling = active.request.pooling;
  if (!pooling || update.error) return;
  if (pooling->probabilities_of.empty()) {
    update.pooled.resize(static_cast<size_t>(model_->info.hidden_size));
    model_->forward->final_hidden(sequence.first_row + sequence.num_rows - 1, update.pooled);
  }
  if (!std::ranges::all_of(update.pooled, [](float x) { return std::isfinite(x); })) {
    update.error = Error{ErrorKind::kInternal, "the model produced what is not numbers"};
  } else if (!pooling->probabilities_of.empty()) {
    softmax(update.pooled);
  }
}

void Core::finish_step() {
  outputs_.clear();
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    const RequestId id = plan_.requests[i].id;
    Update& update = updates_[i];
    if (plan_.requests[i].samples) finish_pooling(active_.at(id), batch_.sequences[i], update);
    if (!update.error && !update.tokens.empty() && stops(active_.at(id), update.tokens.back())) {
      update.finish = FinishReason::kStop;
      update.stop_token = update.tokens.back();
    }
    outputs_.push_back({id, update.tokens, update.finish == FinishReason::kStop});
  }
  const std::vector<RequestId>& ended = scheduler_.apply(plan_, outputs_);
  const auto now = Clock::now();
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    const RequestId id = plan_.requests[i].id;
    deliver(id, updates_[i], std::ranges::find(ended, id) != ended.end(), now);
  }
}

void Core::deliver(RequestId id, Update& update, bool ended, Clock::time_point now) {
  if (update.error) {
    scheduler_.abort(id);
    ++counters_.finished_error;
    end(id, {.finish = FinishReason::kError, .error = std::move(update.error)});
    return;
  }
  if (update.tokens.empty() && update.pooled.empty()) return;
  Active& active = active_.at(id);
  counters_.generation_tokens += update.tokens.size();
  update.prompt_logprobs = std::move(active.prompt_logprobs);
  active.prompt_logprobs.clear();
  update.cache_report = std::exchange(active.cache_report, std::nullopt);
  update.cached_tokens = static_cast<int>(active.cached_tokens);
  if (active.first_token == Clock::time_point{}) active.first_token = now;
  update.times = {.queue = seconds(active.started - active.arrival),
                  .prefill = seconds(active.first_token - active.started),
                  .decode = seconds(now - active.first_token)};
  if (!ended) return active.sink(std::move(update));
  if (update.finish == FinishReason::kNone)
    update.finish = active.request.pooling ? FinishReason::kStop : FinishReason::kLength;
  ++(update.finish == FinishReason::kStop ? counters_.finished_stop : counters_.finished_length);
  end(id, std::move(update));
}

EngineStats Core::stats(EngineStats used) const {
  EngineStats s = counters_;
  s.cache_groups = std::move(used.cache_groups);
  s.cache_groups.clear();
  const sched::SchedulerStats scheduler = scheduler_.stats();
  s.running = static_cast<int>(scheduler.running);
  s.waiting = static_cast<int>(scheduler.waiting);
  s.kv_cache_usage = scheduler.cache_usage;
  s.free_blocks = scheduler.free_blocks;
  s.total_blocks = scheduler.total_blocks;
  s.prefix_cache_queries = scheduler.prefix_queries;
  s.prefix_cache_hits = scheduler.prefix_hits;
  s.preemptions = scheduler.preemptions;
  const cache::Coordinator& cache = scheduler_.cache();
  for (int32_t g = 0; g < static_cast<int32_t>(cache.num_groups()); ++g) {
    const cache::GroupStats group = cache.stats(GroupId{g});
    s.cache_groups.push_back({.kind = cache.kind(GroupId{g}),
                              .held_blocks = group.blocks.held,
                              .retained_blocks = group.blocks.retained,
                              .evictions = static_cast<uint64_t>(group.blocks.evictions),
                              .hit_tokens = static_cast<uint64_t>(group.hit_tokens)});
  }
  return s;
}

}  // namespace quire::engine
