// A model and what the API needs of it: what `serve` puts behind a port, and `run` behind a terminal.
//
// prepare() tells what is wrong with flags and files before anything is loaded.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "api/backend.h"
#include "api/request.h"
#include "flags.h"
#include "text/grammar.h"
#include "text/load.h"

namespace quire::apps {

struct PreparedModel {
  ModelFlags flags;  // with the template's text in place of its file
  api::SamplingDefaults sampling_defaults = {};
};

Result<PreparedModel> prepare(ModelFlags flags);
// The file's name without .gguf, or the folder's.
std::string name_of(const ModelFlags& flags);

// Outlives the Service that is opened with its backend; goes before that which the Service posts to.
class ModelApi {
 public:
  static Result<std::unique_ptr<ModelApi>> load(const PreparedModel& model);

  api::Backend backend();
  const ModelInfo& info() const { return engine_->info(); }
  const api::OutputFormats& formats() const { return formats_; }
  bool has_text() const { return text_.has_value(); }

 private:
  ModelApi() = default;

  std::optional<text::ModelText> text_;
  std::optional<text::GrammarCompiler> grammars_;
  api::OutputFormats formats_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace quire::apps
