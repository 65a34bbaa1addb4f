// One request for completions, by whichever endpoint, from its body to the end of its answer.
//
// begin() has the body planned on a text thread and the engine asked. From then on everything happens on the io thread:
// the engine's sinks leave their updates in an Inbox and post this, the io thread takes them out, each goes through its
// Choice, and out as an event or, at the end, as one body. What the io thread has not taken yet grows into one update:
// leaving one allocates nothing. If the client leaves, or an answer ends at a stop string, the engine's requests are
// cancelled. The sinks keep the Generation alive until the engine is done with it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/answer_reader.h"
#include "api/backend.h"
#include "api/choice.h"
#include "api/endpoint.h"
#include "api/http.h"
#include "api/metrics.h"
#include "api/plan.h"
#include "api/reply.h"
#include "api/worker_pool.h"

namespace quire::api {

// What all requests of a Service share. Outlives them.
struct GenerationContext {
  const ServiceOptions& options;
  const Backend& backend;
  Metrics& metrics;
  WorkerPool& pool;
  std::string fingerprint;
  std::vector<TokenId> marker_tokens;  // special ones that output parsers must see
};

class Generation final : public Task, public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationContext& context, std::shared_ptr<Exchange> exchange, std::string request_id,
             const Endpoint& endpoint);

  // Called once, on the io thread.
  void begin(HttpRequest request);
  // Takes what the engine left.
  void run() override;

 private:
  using Clock = std::chrono::steady_clock;

  // One answer: its Choice, and what is kept of it for a body or for the next piece of a stream.
  struct Answer {
    Choice choice;
    AnswerReader reader;
    std::vector<OutputPiece> pieces = {};
    std::vector<TokenId> tokens = {};
    std::vector<PositionLogprobs> logprobs = {};
    std::vector<PositionLogprobs> prompt_logprobs = {};
    bool started = false;
    int cached_tokens = 0;
    std::optional<RequestTimes> times = {};
    std::optional<CacheReport> cache_report = {};
    std::string quire = {};  // of the reply, once the answer has ended
    Clock::time_point first_token = {};
    Clock::time_point last_token = {};
  };

  // What the engine left for each answer. Any thread.
  class Inbox {
   public:
    void open(size_t answers);
    void add(size_t answer, Update&& update);
    // Swaps what has come for the answer with `update`, which is empty; false if nothing has.
    bool take(size_t answer, Update& update);

   private:
    struct Slot {
      bool filled = false;
      Update update = {};
    };
    std::mutex mutex_;
    std::vector<Slot> slots_;
  };

  void on_text_thread(std::function<void()> work);
  void plan(const std::string& body, uint64_t random_seed);
  void submit();
  void submitted(std::vector<uint64_t> ids);
  void fail(const Error& error);
  void on_update(size_t index, Update&& update);
  void time_tokens(Answer& answer);
  void keep(Answer& answer, Choice::Delta delta);
  void stream(size_t index);
  bool waits_for_echo(size_t index) const;
  void send_piece(size_t index);
  void answer_ended(size_t index, const std::optional<Error>& error);
  void start_stream();
  void end_stream();
  void send_body();
  void client_left();
  void cancel_all();
  void log(int status) const;

  bool echoes_logprobs() const { return plan_.echo && plan_.options.sampling.logprobs.has_value(); }
  // The first answer to the same prompt: the one whose request brings the prompt's log-probabilities.
  size_t first_answer(size_t index) const { return index - index % static_cast<size_t>(plan_.options.n); }
  std::string echo_text(size_t answer) const;
  AnswerPiece piece_of(size_t index) const;
  Headers headers() const;

  GenerationContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string request_id_;
  const Endpoint& endpoint_;
  const Clock::time_point arrival_ = Clock::now();
  std::string client_;
  std::atomic<bool> closed_ = false;  // the client has its answer or has left: nothing more is sent

  // Made on the text thread, then the io thread's.
  Plan plan_;
  std::unique_ptr<Reply> reply_;
  std::vector<Answer> answers_;
  Usage usage_;

  Inbox inbox_;
  Update taken_;  // the io thread's: empty, with memory that goes back to the inbox

  bool planned_ = false;       // what the text thread made is the io thread's
  std::vector<uint64_t> ids_;  // of the engine's requests, once known
  bool stream_started_ = false;
  size_t ended_ = 0;
};

}  // namespace quire::api
