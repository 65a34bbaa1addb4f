// A conversation with a model in this process, through the API's own handler: each question is the body that a client
// of a server would send, and each answer the stream that it would get. So answers are the server's, to the bit.
//
// One thread, which is the API's io thread while ask() runs.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/http.h"
#include "quire/error.h"

namespace quire::apps {

// Runs what other threads post. Outlives everyone who posts.
class TaskQueue {
 public:
  TaskQueue();
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void post(std::function<void()> task);  // from any thread
  void run_while(const std::function<bool()>& condition);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ChatUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t first_tokens = 0;  // of them that came together as the first piece
  double first_seconds = 0;  // from the question to the first piece
  double rest_seconds = 0;   // from there to the last
};

struct ChatAnswer {
  std::string content;
  std::string finish_reason;  // empty: interrupted
  ChatUsage usage;
};

class Chat {
 public:
  using Piece = std::function<void(bool reasoning, std::string_view text)>;

  Chat(api::Handler handler, TaskQueue& tasks) : handler_(std::move(handler)), tasks_(tasks) {}

  // Replaces the system message; empty: none.
  void set_system(std::string text) { system_ = std::move(text); }
  // Sets a parameter of the requests that follow; an empty value: the default again. kInvalidRequest if no request may
  // have it.
  Result<void> set(const std::string& name, const std::string& value);
  const std::map<std::string, std::string>& settings() const { return settings_; }  // values as JSON
  // Forgets what was said, but for the system message.
  void clear() { messages_.clear(); }

  // Asks and gives out the answer as it comes; ends early once `interrupted`. What was said until then stays in the
  // conversation; a question that fails does not.
  Result<ChatAnswer> ask(std::string question, const Piece& piece, const std::atomic<bool>& interrupted);

 private:
  struct Message {
    std::string_view role;  // a literal
    std::string content;
  };
  std::string body() const;

  api::Handler handler_;
  TaskQueue& tasks_;
  std::string system_;
  std::vector<Message> messages_;
  std::map<std::string, std::string> settings_;
};

}  // namespace quire::apps
