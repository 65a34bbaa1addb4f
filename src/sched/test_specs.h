// Random kinds of layers for the property tests of scheduler and simulator.
#pragma once

#include <rapidcheck.h>

#include "cache/spec.h"

namespace quire::sched {

inline cache::CacheSpec random_spec() {
  cache::CacheSpec spec{.block_size = *rc::gen::element(2, 4, 8), .state_bytes = 16};
  switch (*rc::gen::inRange(0, 7)) {
    case 0:
    case 1:
      spec.retention = cache::SlidingWindow{.window = *rc::gen::inRange(2, 20)};
      break;
    case 2:
      spec.retention = cache::ChunkedLocal{.chunk = spec.block_size * *rc::gen::inRange(1, 4)};
      break;
    case 3:
      spec.retention = cache::CircularBuffer{};
      spec.prefix_cacheable = false;
      break;
    case 4:
      spec.storage = cache::Storage::kState;
      spec.retention = cache::RecurrentState{.checkpoints = cache::RecurrentState::Checkpoints::kAlign};
      break;
    default:
      break;
  }
  return spec;
}

}  // namespace quire::sched
