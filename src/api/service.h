// The OpenAI API over one engine: the Handler that a server runs.
//
//   api::Service service({.served_model_names = {"m"}});
//   std::jthread io([&] { server->run(service.handler()); });   // answers 503 until open()
//   service.open(api::backend_of(*engine));
//   io.join();          // drained
//   service.close();    // no call into the engine after this
//
// The server must be destroyed after the engine, since the engine's last updates are posted to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/backend.h"
#include "api/http.h"
#include "api/request.h"

namespace quire::api {

// From the system's source of randomness.
uint64_t random_64_bits();

struct ServiceOptions {
  std::vector<std::string> served_model_names;        // at least one; the first is the one that answers carry
  std::vector<std::string> api_keys = {};             // empty: no key is asked for
  int text_threads = 2;                               // that parse, render and tokenise
  int max_choices = 1024;                             // answers of one request: prompts times n
  size_t max_prompt_tokens = 4 << 20;                 // of one request, times n
  size_t max_sampling_ids = 4 << 20;                  // allowed, stop and biased ids of one request, times its answers
  SamplingDefaults sampling_defaults = {};            // of requests that do not say otherwise
  std::function<uint64_t()> random = random_64_bits;  // request ids, and seeds of requests that bring none
};

class Service {
 public:
  explicit Service(ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Serves this model from now on. Called once, from any thread. Before, requests are answered with 503.
  void open(Backend backend);
  // Ends the text threads. Called when the server has stopped running, before what open() was given goes away.
  void close();

  Handler handler();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::api
