// An Outbox is the Exchange of one request on one connection: it frames the answer and holds what is not sent yet.
//
// The handler fills it, the connection empties it with take() until done(). If more than `max_unsent` bytes of a stream
// wait, the reader is too slow and `drop` is called. After close() nothing is taken in.
// Only the io thread calls it, but for post().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "api/http.h"

namespace quire::net {

struct OutboxOptions {
  bool http11 = true;
  bool head_only = false;  // a HEAD request: no body goes out
  bool keep_alive = true;
  size_t max_unsent = 0;
  std::function<void(std::function<void()>)> post;  // to the io thread
  std::function<void(std::shared_ptr<api::Task>)> post_task;
  std::function<void()> wake;  // tells the connection that something changed
  std::function<void()> drop;  // tells it to close
  std::function<std::string_view()> date;
};

class Outbox final : public api::Exchange {
 public:
  explicit Outbox(OutboxOptions options) : options_(std::move(options)) {}

  void respond(api::HttpResponse response) override;
  void start(api::HttpResponse head) override;
  void write(std::string_view piece) override;
  void finish() override;
  void on_close(std::function<void()> callback) override;
  void post(std::function<void()> task) override { options_.post(std::move(task)); }
  void post(std::shared_ptr<api::Task> task) override { options_.post_task(std::move(task)); }

  // What waits to be sent; it counts as sent from now on.
  std::string take() { return std::exchange(unsent_, {}); }
  bool done() const { return state_ == State::kDone; }
  // Whether the connection may serve another request after this answer.
  bool keep_alive() const { return options_.keep_alive; }
  void forbid_keep_alive() { options_.keep_alive = false; }
  // No more is sent. The handler is told, once, if its answer was not taken whole.
  void close();
  // The answer is out, or never will be, and the connection turns to other work: it is not called any more.
  void detach() {
    options_.wake = nullptr;
    options_.drop = nullptr;
  }

 private:
  enum class State { kFresh, kStreaming, kDone };
  void wake() {
    if (options_.wake) options_.wake();
  }

  OutboxOptions options_;
  State state_ = State::kFresh;
  bool chunked_ = false;
  bool closed_ = false;
  std::string unsent_;
  std::function<void()> on_close_;
};

}  // namespace quire::net
