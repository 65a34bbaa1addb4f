#include "quire/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "engine/core.h"

namespace quire {
namespace {

struct Submission {
  RequestId id;
  Request request;
  Engine::Sink sink;
  engine::Core::Clock::time_point arrival;
};

}  // namespace

// Callers leave messages under the mutex; the engine's thread takes them between two steps. It alone touches the core.
class Engine::Impl {
 public:
  Impl(std::unique_ptr<engine::Core> core, const EngineOptions& options)
      : core_(std::move(core)), info_(core_->info()), max_waiting_(options.max_waiting_requests) {
    stats_ = core_->stats();
    thread_ = std::thread([this] {
      core_->model().pool->pin_caller();
      run();
    });
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  Result<std::vector<uint64_t>> submit(std::vector<Request> requests, std::vector<Sink> sinks) {
    if (sinks.size() != requests.size() || std::ranges::any_of(sinks, [](const Sink& sink) { return !sink; }))
      return fail(ErrorKind::kInvalidRequest, "every request needs a sink", "sinks");
    for (const Request& request : requests)
      if (auto valid = engine::validate_request(request, info_); !valid) return std::unexpected(valid.error());
    const auto arrival = engine::Core::Clock::now();
    std::vector<uint64_t> ids;
    {
      std::lock_guard lock(mutex_);
      // A single request of many answers may exceed the bound when nothing waits; then only it waits.
      const size_t waiting = inbox_.size() + static_cast<size_t>(stats_.waiting);
      if (waiting > 0 && waiting + requests.size() > static_cast<size_t>(max_waiting_))
        return fail(ErrorKind::kExhausted,
                    fmt::format("{} requests wait already; at most {} may", waiting, max_waiting_));
      for (size_t i = 0; i < requests.size(); ++i) {
        ids.push_back(next_id_++);
        inbox_.push_back({RequestId(ids.back()), std::move(requests[i]), std::move(sinks[i]), arrival});
      }
    }
    wake_.notify_one();
    return ids;
  }

  void cancel(uint64_t id) {
    {
      std::lock_guard lock(mutex_);
      cancelled_.push_back(RequestId(id));
    }
    wake_.notify_one();
  }

  const ModelInfo& info() const { return info_; }

  EngineStats stats() const {
    std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.waiting += static_cast<int>(inbox_.size());
    return stats;
  }

 private:
  void run() {
    while (take_messages()) {
      step();
      publish_stats();
    }
    core_->end_all(std::nullopt);
  }

  // A fault that is nobody's own, such as no memory, ends what runs; the engine goes on with what comes next.
  void step() {
    Result<void> done;
    try {
      done = core_->step();
    } catch (const std::exception& e) {
      done = fail(ErrorKind::kInternal, std::string("a step failed: ") + e.what());
    }
    if (done) return;
    log::error(done.error().message);
    core_->end_all(done.error());
  }

  void add(Submission submission) {
    // The core may take the sink before it throws, so a copy stays here.
    const Sink sink = submission.sink;
    try {
      core_->add(submission.id, std::move(submission.request), std::move(submission.sink), submission.arrival);
    } catch (const std::exception& e) {
      sink({.finish = FinishReason::kError,
            .error = Error{ErrorKind::kExhausted, std::string("the request does not fit memory: ") + e.what()}});
    }
  }

  // Waits until there is something to do, then hands new and cancelled requests to the core. False when stopping.
  bool take_messages() {
    std::vector<Submission> added;
    std::vector<RequestId> cancelled;
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !cancelled_.empty() || core_->has_work(); });
      added.swap(inbox_);
      cancelled.swap(cancelled_);
      stats_.waiting += static_cast<int>(added.size());  // until the core counts them
      stopping = stopping_;
    }
    for (auto& submission : added) add(std::move(submission));
    for (RequestId id : cancelled) core_->cancel(id);
    if (!added.empty() || !cancelled.empty()) publish_stats();
    return !stopping;  // as it was when the messages were taken: none is left behind
  }

  void publish_stats() {
    next_stats_ = core_->stats(std::move(next_stats_));
    std::lock_guard lock(mutex_);
    std::swap(stats_, next_stats_);
  }

  std::unique_ptr<engine::Core> core_;
  const ModelInfo info_;
  const int max_waiting_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Submission> inbox_;
  std::vector<RequestId> cancelled_;
  EngineStats stats_;
  EngineStats next_stats_;  // the engine thread's
  uint64_t next_id_ = 1;
  bool stopping_ = false;

  std::thread thread_;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(EngineOptions options) {
  auto model = engine::LoadedModel::load(options);
  if (!model) return std::unexpected(model.error());
  auto core = engine::Core::create(std::move(*model), options);
  if (!core) return std::unexpected(core.error());
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(std::move(*core), options)));
}

Result<uint64_t> Engine::submit(Request request, Sink sink) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  std::vector<Sink> sinks;
  sinks.push_back(std::move(sink));
  auto ids = submit_all(std::move(requests), std::move(sinks));
  if (!ids) return std::unexpected(ids.error());
  return ids->front();
}

Result<std::vector<uint64_t>> Engine::submit_all(std::vector<Request> requests, std::vector<Sink> sinks) {
  return impl_->submit(std::move(requests), std::move(sinks));
}

void Engine::cancel(uint64_t id) { impl_->cancel(id); }
const ModelInfo& Engine::info() const { return impl_->info(); }
EngineStats Engine::stats() const { return impl_->stats(); }

}  // namespace quire
