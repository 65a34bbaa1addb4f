// The tensors that a ModelSpec names, in the order in which they are digested, and whether a checkpoint's are these.
#pragma once

#include <functional>
#include <string>

#include "model/spec.h"
#include "quire/error.h"
#include "weights/tensor_source.h"

namespace quire::model {

// `matrix` and `part` are null where the tensor is none to be packed.
using TensorVisitor = std::function<void(const std::string& name, const MatrixSpec* matrix, const MatrixPart* part)>;

// Each name once, of a stack by its first part.
void for_each_tensor(const ModelSpec& spec, const TensorVisitor& f);
void for_each_name(const ModelSpec& spec, const std::function<void(const std::string&)>& f);

// As a matrix of its own, where the head is not tied to it.
MatrixSpec embedding_of(const ModelSpec& spec);

// Whether the checkpoint is the spec's: it has every tensor that the spec names, and none beside them that is part of a
// layer, of the head, or of a layer behind the spec's. Such a bias or layer would change the answers. kCorruptFile,
// kNotFound or kUnsupported name the tensor at fault. Reads names alone.
Result<void> check_names(const ModelSpec& spec, const weights::TensorSource& tensors);

}  // namespace quire::model
