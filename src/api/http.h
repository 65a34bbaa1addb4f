// One HTTP exchange as the API sees it: a request, a Handler that answers it, and the Exchange it answers through.
//
// The network side calls admit() with the head alone, before it reads a body, and then handle() with the whole request;
// both on its one io thread, so neither may block. Every Exchange is answered exactly once: by respond(), or by
// start(), any number of write() and finish(). An Exchange may be held and answered later, but only on the io thread:
// other threads reach it with post(). The server must outlive everyone who may still call post().
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::api {

using Headers = std::vector<std::pair<std::string, std::string>>;

// Names that a client made up, as a header's value: those that do not fit one are left out.
std::string header_list(const std::vector<std::string>& names);

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query
  std::string query;   // behind '?', not decoded
  Headers headers;     // names in lower case
  std::string client;  // address and port, for the log
  std::string body;

  // The first header of this lower-case name, or empty.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  Headers headers = {};
  std::string content_type = "application/json";
  std::string body = {};
};

// Something that runs on the io thread each time it was posted; posted again before it ran, it runs once. Posting it
// allocates nothing: what a queue needs for it lies here.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run() = 0;

  std::atomic<bool> posted = false;
  alignas(std::max_align_t) std::byte place[128];
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void respond(HttpResponse response) = 0;
  // Begins a streamed answer; the body of `head` is its first piece. Pieces go out as they come.
  virtual void start(HttpResponse head) = 0;
  virtual void write(std::string_view piece) = 0;
  virtual void finish() = 0;

  // Called once if the client leaves, or is dropped, before the answer is out. Writes after that are ignored.
  virtual void on_close(std::function<void()> callback) = 0;
  // Runs `task` on the io thread; from any thread, in order.
  virtual void post(std::function<void()> task) = 0;
  // The same for a task that is posted again and again. It is held until it has run.
  virtual void post(std::shared_ptr<Task> task) = 0;
};

struct Handler {
  // Refuses a request by its head alone, or lets its body be read.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> admit;
  std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)> handle;
};

}  // namespace quire::api
