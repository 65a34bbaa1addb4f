// Which experts a row goes to, and their weights, from the router's fp32 logits.
//
// Pure, from the row alone, in plain fp32 code that is the same for every instruction set (numerics rule 8): experts of
// equal scores are taken in ascending order, and so are sums over the chosen ones. Safe from any thread.
#pragma once

#include <cstdint>

#include "quire/error.h"

namespace quire::kernels {

enum class Scoring : uint8_t {
  kSoftmax,  // over all experts
  kSigmoid,
};

struct RouterShape {
  int experts = 0;
  int chosen = 0;  // for each row
  Scoring scoring = Scoring::kSoftmax;
  // Experts of the best `chosen_groups` of `groups` neighbourhoods alone are chosen: those whose `group_best` best
  // scores have the greatest sum.
  int groups = 1;
  int chosen_groups = 1;
  int group_best = 1;
  bool renormalise = true;  // the weights of a row add up to 1, before they are scaled
  float scaling = 1;
};

// kUnsupported, naming the number that is out of range.
Result<void> check_router_shape(const RouterShape& shape);

inline constexpr int kMostExperts = 1024;
inline constexpr int kMostChosen = 64;

struct Route {
  int expert;
  float weight;
};

// The row's `chosen` experts in ascending order. Scores for the choice, not the weights, have `correction` added;
// null: nothing. A logit or score that is NaN makes all weights of the row NaN.
void route(const RouterShape& shape, const float* logits, const float* correction, Route* out);

}  // namespace quire::kernels
