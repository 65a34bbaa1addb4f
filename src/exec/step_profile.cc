#include "exec/step_profile.h"

namespace quire::exec {

std::string_view name_of(Operator op) {
  constexpr std::string_view kNames[kOperators] = {
      "embed",   "norm + quantise",       "qkv",  "rope + norm", "kv write", "attention", "attention output", "router",
      "gate/up", "activation + quantise", "down", "head",        "sampling", "outside"};
  return kNames[static_cast<size_t>(op)];
}

void StepProfile::count(const StepWork& work) {
  ++steps_;
  for (size_t i = 0; i < kOperators; ++i) costs_[i].work += work[i];
}

double StepProfile::seconds() const {
  double all = 0;
  for (const Cost& cost : costs_) all += cost.seconds;
  return all;
}

}  // namespace quire::exec
