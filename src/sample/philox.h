// Philox4x32-10: a counter-based random generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// A pure function of counter and key: nothing is ever drawn "next", so no order of requests can change a number.
#pragma once

#include <array>
#include <cstdint>

namespace quire::sample {

using PhiloxCounter = std::array<uint32_t, 4>;

constexpr PhiloxCounter philox(PhiloxCounter counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace quire::sample
