// Online quantisation of a checkpoint: which matrices of the spec that are floats in the file are held in fewer bits.
//
// Every matrix that the GEMM kernels multiply with can be; norms, biases, convolutions and what plain code multiplies
// with stay floats. Embedding, head and the attention's values become int8 also where the layers become int4: values
// are few, and every error in them reaches the residual stream.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "weights/rounded_source.h"

namespace quire::model {

struct QuantisationPlan {
  weights::RoundedSource::Formats formats;  // of the tensors to quantise
  std::vector<std::string> kept;            // that stay floats, since their rows are not whole groups of 32 inputs
};

// One of `layers` and `head` asks for something. kUnsupported, naming the option, if nothing is left to quantise: what
// it means is quantised in the file, or has no whole groups. Missing tensors are passed over: load_weights() tells.
Result<QuantisationPlan> plan_quantisation(const ModelSpec& spec, const weights::TensorSource& tensors,
                                           Quantization layers, LmHeadQuantization head);

}  // namespace quire::model
