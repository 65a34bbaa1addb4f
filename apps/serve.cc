// quire serve: opens the port, loads the model beside it, then answers. Requests that come before get 503.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "api/parsers/output_parser.h"
#include "api/service.h"
#include "base/log.h"
#include "commands.h"
#include "net/server.h"
#include "progress.h"
#include "text/grammar.h"
#include "text/load.h"
#include "weights/checkpoint.h"

namespace quire::apps {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr int kMaxChoices = 1024;

using TextResult = Result<std::optional<text::ModelText>>;

std::string hex(const Sha256Digest& digest) {
  std::string out;
  for (std::byte b : digest) out += fmt::format("{:02x}", static_cast<int>(b));
  return out;
}

// The argument itself if it is a template, the file's text if it names a file.
Result<std::string> read_template(const std::string& argument) {
  if (argument.find("{{") != std::string::npos || argument.find("{%") != std::string::npos) return argument;
  const auto wrong = [&](ErrorKind kind, std::string_view what) {
    return fail(kind, fmt::format("--chat-template: {} {}", argument, what), "--chat-template");
  };
  std::error_code ec;
  const auto status = std::filesystem::status(argument, ec);
  if (!std::filesystem::exists(status)) return wrong(ErrorKind::kNotFound, "is no file, and no template itself");
  if (!std::filesystem::is_regular_file(status)) return wrong(ErrorKind::kInvalidRequest, "is not a regular file");
  std::ifstream in(argument, std::ios::binary);
  std::string source(kMaxTemplateBytes + 1, '\0');
  in.read(source.data(), static_cast<std::streamsize>(source.size()));
  if (!in.eof() && !in) return wrong(ErrorKind::kInvalidRequest, "cannot be read");
  source.resize(static_cast<size_t>(in.gcount()));
  if (source.size() > kMaxTemplateBytes)
    return wrong(ErrorKind::kInvalidRequest, fmt::format("has more than {} bytes", kMaxTemplateBytes));
  if (source.empty()) return wrong(ErrorKind::kInvalidRequest, "is empty");
  return source;
}

// Tokenizer and template of the model, with the template replaced by flags.chat_template, its text, if there is one.
TextResult load_model_text(const ServeFlags& flags) {
  auto checkpoint = weights::open_checkpoint(flags.engine.model, flags.engine.hf_config_path);
  if (!checkpoint) return std::unexpected(checkpoint.error());
  auto text = checkpoint->gguf != nullptr ? text::load_text(*checkpoint->gguf) : text::load_text(checkpoint->path);
  if (!text || !*text || flags.chat_template.empty()) return text;
  const std::string& source = flags.chat_template;
  text::ModelText& model_text = **text;
  std::map<std::string, std::string> tokens;
  const text::SpecialIds ids = model_text.tokenizer.special_ids();
  for (const auto& [name, id] : {std::pair{"bos_token", ids.bos}, std::pair{"eos_token", ids.eos}})
    if (id) tokens[name] = model_text.tokenizer.name(*id);
  auto compiled = text::ChatTemplate::compile({.text = source, .special_tokens = std::move(tokens)});
  if (!compiled) return std::unexpected(compiled.error());
  model_text.chat_template = std::move(*compiled);
  Sha256 hash;
  hash.update(model_text.digest);
  hash.update(std::as_bytes(std::span(source)));
  model_text.digest = hash.finish();
  return text;
}

// What the flags name, or else what the template tells.
Result<api::OutputFormats> output_formats(const ServeFlags& flags, std::string_view chat_template) {
  api::OutputFormats formats = api::formats_of(chat_template);
  const auto wrong = [](const Error& error, const char* flag) {
    return fail(ErrorKind::kInvalidRequest, fmt::format("{}: {}", flag, error.message), flag);
  };
  if (flags.tool_call_parser != "auto") {
    auto named = api::tool_format(flags.tool_call_parser);
    if (!named) return wrong(named.error(), "--tool-call-parser");
    formats.tools = *named;
  }
  if (flags.reasoning_parser != "auto") {
    auto named = api::reasoning_format(flags.reasoning_parser);
    if (!named) return wrong(named.error(), "--reasoning-parser");
    formats.reasoning = *named;
  }
  return formats;
}

// What generation_config.json says of requests that do not say otherwise.
Result<api::SamplingDefaults> sampling_defaults(const ServeFlags& flags, const weights::Checkpoint& checkpoint) {
  if (!flags.generation_config || checkpoint.generation_config_json.empty()) return api::SamplingDefaults{};
  auto defaults = api::parse_generation_config(checkpoint.generation_config_json);
  if (!defaults) defaults.error().message += "; --generation-config vllm passes over it";
  return defaults;
}

void say_defaults(const ServeFlags& flags, const api::SamplingDefaults& defaults) {
  const std::string text = api::describe(defaults);
  log::info(!flags.generation_config ? "sampling defaults: vLLM's own, as --generation-config says"
            : text.empty()           ? "sampling defaults: vLLM's own, since the model names none"
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
int load_and_serve(const ServeFlags& flags, const api::SamplingDefaults& defaults, const net::Server& server,
                   api::Service& service, std::jthread& io) {
  const auto start = std::chrono::steady_clock::now();
  auto text = std::async(std::launch::async, [&] { return load_model_text(flags); });
  EngineOptions options = flags.engine;
  options.progress = progress_bar("loading weights");
  auto engine = Engine::load(options);
  auto model_text = text.get();
  if (!engine) return report(engine.error());
  if (!model_text) return report(model_text.error());

  api::Backend backend = api::backend_of(**engine);
  std::optional<text::GrammarCompiler> grammars;
  if (*model_text) {
    backend.tokenizer = &(*model_text)->tokenizer;
    if ((*model_text)->chat_template) {
      backend.chat_template = &*(*model_text)->chat_template;
      backend.formats = *output_formats(flags, backend.chat_template->source());
    }
    backend.text_digest = hex((*model_text)->digest);
    const ModelInfo& info = (*engine)->info();
    backend.grammars = &grammars.emplace((*model_text)->tokenizer, info.end_tokens, info.vocab_size);
  } else {
    log::info("the model has no tokenizer: prompts and answers are token ids only");
  }
  const api::OutputFormats formats = backend.formats;
  service.open(std::move(backend));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!server.stopping()) {
    say_defaults(flags, defaults);
    say_formats(formats);
    say_ready(server, flags, (*engine)->info(), seconds.count());
  }
  io.join();
  service.close();
  return 0;
}

}  // namespace

int serve(const ServeFlags& given) {
  ServeFlags flags = given;
  // Contradictions, a wrong model and a wrong template file end here, before the port is taken.
  auto checkpoint = weights::open_checkpoint(flags.engine.model, flags.engine.hf_config_path);
  if (!checkpoint) return report(checkpoint.error());
  auto defaults = sampling_defaults(flags, *checkpoint);
  if (!defaults) return report(defaults.error());
  if (!flags.chat_template.empty()) {
    auto source = read_template(flags.chat_template);
    if (!source) return report(source.error());
    flags.chat_template = std::move(*source);
  }
  for (const auto& [flag, values] :
       {std::pair{"--served-model-name", &flags.served_model_names}, std::pair{"--api-key", &flags.api_keys}})
    if (std::ranges::find(*values, std::string()) != values->end())
      return report({ErrorKind::kInvalidRequest, fmt::format("{} must not be empty", flag), flag});
  if (flags.served_model_names.empty()) {
    const auto path = std::filesystem::weakly_canonical(flags.engine.model);
    flags.served_model_names = {path.extension() == ".gguf" ? path.stem().string() : path.filename().string()};
  }
  if (auto known = output_formats(flags, ""); !known) return report(known.error());
  net::ServerOptions options;
  options.host = flags.host;
  options.port = flags.port;
  options.drain_timeout = std::chrono::seconds(flags.drain_timeout_seconds);
  auto server = net::Server::listen(options);
  if (!server) return report(server.error());
  // More answers than the queue holds could never be taken in together.
  api::Service service({.served_model_names = flags.served_model_names,
                        .api_keys = flags.api_keys,
                        .max_choices = std::min(kMaxChoices, flags.engine.max_waiting_requests),
                        .sampling_defaults = *defaults});
  std::jthread io([&] { (*server)->run(service.handler()); });
  const StopAtEnd stop_at_end{**server};
  return load_and_serve(flags, *defaults, **server, service, io);
}

}  // namespace quire::apps
