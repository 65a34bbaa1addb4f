// Whether a configuration says something that nothing has read: it might change what the model answers.
#pragma once

#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

// To be called when a model has been made, of composite ones with the text model's configuration. Notes the layers that
// predict further ahead. kUnsupported names the first key with content that was not looked for, and that is not known
// to concern training, generation or files alone.
Result<void> finish(const HuggingFaceConfig& config, ModelSpec& spec);
// The last for keys under the architecture's prefix.
Result<void> require_understood(const GgufConfig& config);

}  // namespace quire::model
