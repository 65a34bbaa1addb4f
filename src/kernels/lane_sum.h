// The end of a sum over a row (numerics rule 5), for plain code: lane i holds the terms of index i mod 16.
#pragma once

namespace quire::kernels {

// The tree i+8, i+4, i+2, i+1. Overwrites the lanes.
inline float sum_of_lanes(float (&lanes)[16]) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
  return lanes[0];
}

}  // namespace quire::kernels
