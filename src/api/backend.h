// What the API needs from below: an engine, and the text side of its model.
//
// The functions may be called from any thread. Everything pointed to outlives the Service that was opened with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "api/parsers/output_parser.h"
#include "quire/engine.h"

namespace quire::text {
class Tokenizer;
class ChatTemplate;
class GrammarCompiler;
}  // namespace quire::text

namespace quire::api {

struct Backend {
  std::function<Result<std::vector<uint64_t>>(std::vector<Request>, std::vector<Engine::Sink>)> submit_all;
  std::function<void(uint64_t)> cancel;
  std::function<EngineStats()> stats;
  const ModelInfo* info = nullptr;
  const text::Tokenizer* tokenizer = nullptr;         // null: token ids in and out alone
  const text::ChatTemplate* chat_template = nullptr;  // null: no chat
  const text::GrammarCompiler* grammars = nullptr;    // null: no structured outputs
  OutputFormats formats = {};                         // in which it writes calls and reasoning
  std::string text_digest = {};                       // of tokenizer and template; part of the system fingerprint
};

inline Backend backend_of(Engine& engine) {
  return {.submit_all =
              [&engine](std::vector<Request> requests, std::vector<Engine::Sink> sinks) {
                return engine.submit_all(std::move(requests), std::move(sinks));
              },
          .cancel = [&engine](uint64_t id) { engine.cancel(id); },
          .stats = [&engine] { return engine.stats(); },
          .info = &engine.info()};
}

}  // namespace quire::api
