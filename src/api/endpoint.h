// The ways in which completions are asked for and answered.
//
// An Endpoint reads a body, makes the Plan of what the engine is asked, and the Reply that writes what it answers. All
// of a request in between is the same for every endpoint. Heavy for long prompts: it runs on a text thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "api/backend.h"
#include "api/plan.h"
#include "api/reply.h"
#include "api/service.h"

namespace quire::api {

struct AskContext {
  const Backend& backend;
  const ServiceOptions& service;
  std::string request_id;
  std::string fingerprint;
  int64_t now = 0;           // seconds since 1970
  uint64_t random_seed = 0;  // for a request that samples and brings none
};

struct Asked {
  Plan plan;
  std::unique_ptr<Reply> reply;
};

struct Endpoint {
  std::string_view path;
  Result<Asked> (*ask)(std::string_view body, const AskContext& context);
};

// Null if `path` is none.
const Endpoint* find_endpoint(std::string_view path);

}  // namespace quire::api
