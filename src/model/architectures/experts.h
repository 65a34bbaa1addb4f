// How checkpoints keep a mixture of experts, as far as architectures have it in common: a matrix an expert in Hugging
// Face files, all of them stacked in GGUF ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/spec.h"
#include "quire/error.h"

namespace quire::model {

struct ExpertSizes {
  kernels::RouterShape router;
  int hidden = 0;
  int size = 0;         // of an expert
  int shared_size = 0;  // of the one that all rows share; 0: none
};

struct ExpertNames {
  std::string scores, correction;  // correction empty: none
  std::string gate, up, down;      // {} for the expert's number; without it the tensor is a stack of all
  std::string gate_up = {};        // instead of gate and up where one tensor holds both, gate first
  std::string shared_gate, shared_up, shared_down;
  std::string shared_scores;  // of the shared expert's own gate; empty: none
};

// Of separate experts, and of the one that all rows share, which checkpoints call `shared`; without corrections and
// gates.
ExpertNames hugging_face_expert_names(const std::string& shared);
ExpertNames gguf_expert_names();

// Whether each layer has experts: every decoder_sparse_step-th, but for mlp_only_layers.
Result<std::vector<bool>> sparse_layers(const HuggingFaceConfig& config, int layers);
// How many experts there are, how many of them a row chooses, and their size. The first error stays in `error`.
void read_experts(const GgufConfig& config, ExpertSizes& sizes, std::optional<Error>& error);

// kUnsupported, naming the sizes, unless a model of so many layers can be written down: what comes of a configuration
// alone, before any tensor is seen, has a bound.
Result<void> check_experts(const ExpertSizes& sizes, int layers);

// The experts of the layer whose tensors begin with `prefix`.
MoeSpec make_experts(const ExpertSizes& sizes, const ExpertNames& names, const std::string& prefix);

}  // namespace quire::model
