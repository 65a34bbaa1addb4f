#include "api/pooling_job.h"

#include <ctime>

#include "base/log.h"

namespace quire::api {
namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string_view name_of(FinishReason reason) {
  return reason == FinishReason::kError ? "error" : reason == FinishReason::kAborted ? "abort" : "stop";
}

}  // namespace

PoolingJob::PoolingJob(GenerationContext& context, std::shared_ptr<Exchange> exchange, std::string request_id,
                       const PoolingEndpoint& endpoint)
    : context_(context), exchange_(std::move(exchange)), request_id_(std::move(request_id)), endpoint_(endpoint) {}

void PoolingJob::begin(HttpRequest request) {
  client_ = std::move(request.client);
  exchange_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->client_left();
  });
  on_text_thread([this, body = std::move(request.body)] { plan(body); });
}

// Runs `work` on a text thread, where it may run out of memory: that ends the request alone.
void PoolingJob::on_text_thread(std::function<void()> work) {
  context_.pool.submit([self = shared_from_this(), work = std::move(work)] {
    try {
      work();
    } catch (const std::exception& failure) {
      self->exchange_->post(
          [self, error = Error{ErrorKind::kInternal, failure.what()}] { self->fail(api_error(error)); });
    }
  });
}

void PoolingJob::plan(const std::string& body) {
  if (closed_) return;
  auto plan = endpoint_.ask(body, {.backend = context_.backend,
                                   .service = context_.options,
                                   .request_id = request_id_,
                                   .fingerprint = context_.fingerprint,
                                   .now = static_cast<int64_t>(std::time(nullptr))});
  if (!plan) {
    exchange_->post([self = shared_from_this(), error = api_error(plan.error())] { self->fail(error); });
    return;
  }
  plan_ = std::move(*plan);
  pooled_.resize(plan_.prompts.size());
  ended_.resize(plan_.prompts.size());
  for (const auto& prompt : plan_.prompts) usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
  submit();
}

void PoolingJob::submit() {
  std::vector<Request> requests;
  std::vector<Engine::Sink> sinks;
  for (size_t i = 0; i < plan_.prompts.size(); ++i) {
    requests.push_back(plan_.request(i));
    sinks.emplace_back([self = shared_from_this(), i](Update&& update) {
      {
        const std::lock_guard lock(self->mutex_);
        self->arrived_.emplace_back(i, std::move(update));
      }
      self->exchange_->post(self);
    });
  }
  auto ids = context_.backend.submit_all(std::move(requests), std::move(sinks));
  if (ids) {
    exchange_->post([self = shared_from_this(), ids = std::move(*ids)]() mutable { self->submitted(std::move(ids)); });
  } else {
    exchange_->post([self = shared_from_this(), error = api_error(ids.error())] { self->fail(error); });
  }
}

void PoolingJob::submitted(std::vector<uint64_t> ids) {
  planned_ = true;
  ids_ = std::move(ids);
  if (closed_) cancel_all();
}

void PoolingJob::run() {
  std::vector<std::pair<size_t, Update>> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
  }
  for (auto& [prompt, update] : arrived) on_update(prompt, std::move(update));
}

void PoolingJob::on_update(size_t prompt, Update&& update) {
  planned_ = true;
  if (update.finish == FinishReason::kNone) return;
  ended_[prompt] = true;
  ++num_ended_;
  usage_.cached_tokens += update.cached_tokens;
  context_.metrics.finished({.reason = name_of(update.finish),
                             .seconds = seconds(Clock::now() - arrival_),
                             .times = update.times,
                             .prompt_tokens = static_cast<int64_t>(plan_.prompts[prompt].size())});
  if (closed_) return;
  if (update.error) return fail(api_error(*update.error));
  if (update.finish == FinishReason::kAborted)
    return fail({.status = 503, .message = "the server shuts down", .code = "draining"});
  pooled_[prompt] = std::move(update.pooled);
  if (num_ended_ == pooled_.size()) send_body();
}

void PoolingJob::fail(const ApiError& error) {
  if (closed_.exchange(true)) return;
  HttpResponse response = error_response(error, endpoint_.path);
  response.headers.emplace_back("X-Request-Id", request_id_);
  exchange_->respond(std::move(response));
  log(error.status);
  cancel_all();
}

// Many numbers make a long body: a text thread writes it.
void PoolingJob::send_body() {
  on_text_thread([this] {
    HttpResponse response{.headers = {{"X-Request-Id", request_id_}}, .body = plan_.body(pooled_, usage_)};
    std::string ignored = header_list(plan_.ignored_fields);
    if (!ignored.empty()) response.headers.emplace_back("X-Quire-Ignored-Fields", std::move(ignored));
    exchange_->post([self = shared_from_this(), response = std::move(response)]() mutable {
      if (self->closed_.exchange(true)) return;
      self->exchange_->respond(std::move(response));
      self->log(200);
    });
  });
}

void PoolingJob::client_left() {
  if (closed_.exchange(true)) return;
  log(499);
  cancel_all();
}

void PoolingJob::cancel_all() {
  for (size_t i = 0; i < ids_.size(); ++i)
    if (!ended_[i]) context_.backend.cancel(ids_[i]);
}

void PoolingJob::log(int status) const {
  context_.metrics.replied(status);
  std::vector<log::Field> fields = {{"id", request_id_},
                                    {"client", client_},
                                    {"path", endpoint_.path},
                                    {"status", int64_t{status}},
                                    {"total_ms", seconds(Clock::now() - arrival_) * 1e3}};
  if (planned_) {
    fields.insert(fields.end(), {{"prompts", static_cast<int64_t>(plan_.prompts.size())},
                                 {"prompt_tokens", usage_.prompt_tokens},
                                 {"cached_tokens", usage_.cached_tokens}});
  }
  log::info("request", fields);
}

}  // namespace quire::api
