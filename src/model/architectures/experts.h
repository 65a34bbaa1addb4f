// How checkpoints keep a mixture of experts, as far as architectures have it in common: a matrix an expert in Hugging
// Face files, all of them stacked in GGUF ones.
#pragma once

#include <string>

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
  std::string shared_gate, shared_up, shared_down;
  std::string shared_scores;  // of the shared expert's own gate; empty: none
};

// kUnsupported, naming the sizes, unless a model of so many layers can be written down: what comes of a configuration
// alone, before any tensor is seen, has a bound.
Result<void> check_experts(const ExpertSizes& sizes, int layers);

// The experts of the layer whose tensors begin with `prefix`.
MoeSpec make_experts(const ExpertSizes& sizes, const ExpertNames& names, const std::string& prefix);

}  // namespace quire::model
