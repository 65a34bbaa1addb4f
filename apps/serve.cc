// quire serve: opens the port, loads the model beside it, then answers. Requests that come before get 503.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "api/parsers/output_parser.h"
#include "api/service.h"
#include "base/log.h"
#include "commands.h"
#include "model_api.h"
#include "net/server.h"

namespace quire::apps {
namespace {

constexpr int kMaxChoices = 1024;

void say_defaults(const PreparedModel& model) {
  const std::string text = api::describe(model.sampling_defaults);
  log::info(!model.flags.generation_config ? "sampling defaults: vLLM's own, as --generation-config says"
            : text.empty()                 ? "sampling defaults: vLLM's own, since the model names none"
                                           : fmt::format("sampling defaults of the model: {}", text));
}

void say_formats(const api::OutputFormats& formats) {
  const std::string text = api::describe(formats);
  log::info(text.empty() ? "answers of chats are taken as they are: the template tells of no calls and no reasoning"
                         : fmt::format("answers of chats are read as the template tells: {}", text));
}

void say_ready(const net::Server& server, const ServeFlags& flags, const ModelInfo& info, double seconds) {
  for (const std::string& line : info.cache_groups) log::info(line);
  log::info(info.minimum_reuse_tokens == 0
                ? std::string("prefix cache: off")
                : fmt::format("prefix cache: prefixes of at least {0} tokens are reused, in steps of {0}",
                              info.minimum_reuse_tokens));
  log::info(fmt::format("{} threads, {} (equal to plain code bit by bit), profile fingerprint {}", info.threads,
                        info.isa, info.fingerprint));
  log::info(fmt::format("ready in {:.2f} s: {} serves {} with {} tokens of KV cache, {} a request", seconds,
                        server.url(), flags.served_model_names.front(), info.kv_cache_tokens, info.max_model_len));
}

// Lets the thread that runs the server end, also where loading failed or threw.
struct StopAtEnd {
  net::Server& server;
  ~StopAtEnd() { server.stop(); }
};

// Loads the model while `io` answers 503, then serves until the server has drained.
int load_and_serve(const ServeFlags& flags, const PreparedModel& prepared, const net::Server& server,
                   api::Service& service, std::jthread& io) {
  const auto start = std::chrono::steady_clock::now();
  auto model = ModelApi::load(prepared);
  if (!model) return report(model.error());
  if (!(*model)->has_text()) log::info("the model has no tokenizer: prompts and answers are token ids only");
  service.open((*model)->backend());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!server.stopping()) {
    say_defaults(prepared);
    say_formats((*model)->formats());
    say_ready(server, flags, (*model)->info(), seconds.count());
  }
  io.join();
  service.close();
  return 0;
}

}  // namespace

int serve(const ServeFlags& given) {
  ServeFlags flags = given;
  if (flags.log_format == "json") log::set_format(log::Format::kJson);
  // Contradictions, a wrong model and a wrong template file end here, before the port is taken.
  const auto prepared = prepare(flags.model);
  if (!prepared) return report(prepared.error());
  for (const auto& [flag, values] :
       {std::pair{"--served-model-name", &flags.served_model_names}, std::pair{"--api-key", &flags.api_keys}})
    if (std::ranges::find(*values, std::string()) != values->end())
      return report({ErrorKind::kInvalidRequest, fmt::format("{} must not be empty", flag), flag});
  if (flags.served_model_names.empty()) flags.served_model_names = {name_of(flags.model)};
  net::ServerOptions options;
  options.host = flags.host;
  options.port = flags.port;
  options.ssl_certfile = flags.ssl_certfile;
  options.ssl_keyfile = flags.ssl_keyfile;
  options.drain_timeout = std::chrono::seconds(flags.drain_timeout_seconds);
  auto server = net::Server::listen(options);
  if (!server) return report(in_flags(server.error()));
  // More answers than the queue holds could never be taken in together.
  api::Service service({.served_model_names = flags.served_model_names,
                        .api_keys = flags.api_keys,
                        .max_choices = std::min(kMaxChoices, flags.model.engine.max_waiting_requests),
                        .sampling_defaults = prepared->sampling_defaults});
  std::jthread io([&] { (*server)->run(service.handler()); });
  const StopAtEnd stop_at_end{**server};
  return load_and_serve(flags, *prepared, **server, service, io);
}

}  // namespace quire::apps
