// The rope that a configuration asks for, in every spelling that checkpoints use.
#pragma once

#include <string>

#include "kernels/rope.h"
#include "model/config.h"
#include "quire/error.h"

namespace quire::model {

// The rope of a Hugging Face configuration for heads of `head_dim`: in the new spelling (rope_parameters, under
// `section` if it is per layer type) or the old one (rope_theta, rope_scaling). Of a head `default_part` turns unless
// the configuration says another part. kUnsupported or kCorruptFile name the
// key at fault, also where a key is unknown: it might change the result.
Result<kernels::RopeParameters> hugging_face_rope(const HuggingFaceConfig& config, const std::string& section,
                                                  int head_dim, double default_theta, double default_part = 1);

// DeepSeek's YaRN also scales the softmax: what q . k is multiplied with beside the usual, mscale(factor,
// mscale_all_dim)^2; 1 where the configuration does not ask for it.
Result<double> yarn_softmax_factor(const HuggingFaceConfig& config);
Result<double> yarn_softmax_factor(const GgufConfig& config);

// The rope of GGUF metadata, with the divisors of the tensors rope_freqs.weight, or rope_factors_short.weight and
// rope_factors_long.weight, where there are such.
Result<kernels::RopeParameters> gguf_rope(const GgufConfig& config, int head_dim);

}  // namespace quire::model
