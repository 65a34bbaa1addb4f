#include "model_api.h"

#include <fmt/format.h>

#include <filesystem>
#include <future>
#include <map>
#include <span>
#include <utility>

#include "base/hex.h"
#include "base/log.h"
#include "base/sha256.h"
#include "progress.h"
#include "read_file.h"
#include "weights/checkpoint.h"

namespace quire::apps {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

using TextResult = Result<std::optional<text::ModelText>>;

// The argument itself if it is a template, the file's text if it names a file.
Result<std::string> read_template(const std::string& argument) {
  if (argument.find("{{") != std::string::npos || argument.find("{%") != std::string::npos) return argument;
  auto source = read_file(argument, kMaxTemplateBytes);
  if (!source) return fail(source.error().kind, "--chat-template: " + source.error().message, "--chat-template");
  return source;
}

// Tokenizer and template of the model, with the template replaced by flags.chat_template, its text, if there is one.
TextResult load_model_text(const ModelFlags& flags) {
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
Result<api::OutputFormats> output_formats(const ModelFlags& flags, std::string_view chat_template) {
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
Result<api::SamplingDefaults> sampling_defaults(const ModelFlags& flags, const weights::Checkpoint& checkpoint) {
  if (!flags.generation_config || checkpoint.generation_config_json.empty()) return api::SamplingDefaults{};
  auto defaults = api::parse_generation_config(checkpoint.generation_config_json);
  if (!defaults) defaults.error().message += "; --generation-config vllm passes over it";
  return defaults;
}

}  // namespace

Result<PreparedModel> prepare(ModelFlags flags) {
  auto checkpoint = weights::open_checkpoint(flags.engine.model, flags.engine.hf_config_path);
  if (!checkpoint) return std::unexpected(checkpoint.error());
  auto defaults = sampling_defaults(flags, *checkpoint);
  if (!defaults) return std::unexpected(defaults.error());
  if (!flags.chat_template.empty()) {
    auto source = read_template(flags.chat_template);
    if (!source) return std::unexpected(source.error());
    flags.chat_template = std::move(*source);
  }
  if (auto known = output_formats(flags, ""); !known) return std::unexpected(known.error());
  return PreparedModel{.flags = std::move(flags), .sampling_defaults = *defaults};
}

std::string name_of(const ModelFlags& flags) {
  const auto path = std::filesystem::weakly_canonical(flags.engine.model);
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

Result<std::unique_ptr<ModelApi>> ModelApi::load(const PreparedModel& model) {
  const ModelFlags& flags = model.flags;
  auto text = std::async(std::launch::async, [&] { return load_model_text(flags); });
  EngineOptions options = flags.engine;
  options.progress = progress_bar("loading weights");
  auto engine = Engine::load(options);
  auto model_text = text.get();
  if (!engine) return std::unexpected(engine.error());
  if (!model_text) return std::unexpected(model_text.error());

  std::unique_ptr<ModelApi> api(new ModelApi);
  api->text_ = std::move(*model_text);
  api->engine_ = std::move(*engine);
  if (!api->text_) return api;
  if (api->text_->chat_template) api->formats_ = *output_formats(flags, api->text_->chat_template->source());
  const ModelInfo& info = api->engine_->info();
  api->grammars_.emplace(api->text_->tokenizer, info.end_tokens, info.vocab_size);
  return api;
}

api::Backend ModelApi::backend() {
  api::Backend backend = api::backend_of(*engine_);
  if (!text_) return backend;
  backend.tokenizer = &text_->tokenizer;
  if (text_->chat_template) backend.chat_template = &*text_->chat_template;
  backend.formats = formats_;
  backend.text_digest = hex(text_->digest);
  backend.grammars = &*grammars_;
  return backend;
}

}  // namespace quire::apps
