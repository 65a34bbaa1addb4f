// One request for embeddings, a ranking or scores, from its body to its reply.
//
// As a Generation: the body is planned on a text thread, which asks the engine for all prompts at once. Each prompt's
// one update waits here until the io thread takes it; when all are there, a text thread writes the reply. The first
// error is the reply and ends the rest, and so does a client that leaves. The sinks keep the job alive until the engine
// is done with it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/error_reply.h"
#include "api/generation.h"
#include "api/http.h"
#include "api/pooling_plan.h"

namespace quire::api {

class PoolingJob final : public Task, public std::enable_shared_from_this<PoolingJob> {
 public:
  PoolingJob(GenerationContext& context, std::shared_ptr<Exchange> exchange, std::string request_id,
             const PoolingEndpoint& endpoint);

  // Called once, on the io thread.
  void begin(HttpRequest request);
  // Takes what the engine left.
  void run() override;

 private:
  using Clock = std::chrono::steady_clock;

  void on_text_thread(std::function<void()> work);
  void plan(const std::string& body);
  void submit();
  void submitted(std::vector<uint64_t> ids);
  void on_update(size_t prompt, Update&& update);
  void fail(const ApiError& error);
  void send_body();
  void client_left();
  void cancel_all();
  void log(int status) const;

  GenerationContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string request_id_;
  const PoolingEndpoint& endpoint_;
  const Clock::time_point arrival_ = Clock::now();
  std::string client_;
  std::atomic<bool> closed_ = false;  // the client has its reply or has left: nothing more is sent

  std::mutex mutex_;
  std::vector<std::pair<size_t, Update>> arrived_;  // by prompt: what the io thread has not taken yet

  // Made on the text thread, then the io thread's once planned_.
  PoolingPlan plan_;
  std::vector<std::vector<float>> pooled_;
  Usage usage_;
  bool planned_ = false;

  std::vector<uint64_t> ids_;  // of the engine's requests, once known
  std::vector<bool> ended_;
  size_t num_ended_ = 0;
};

}  // namespace quire::api
