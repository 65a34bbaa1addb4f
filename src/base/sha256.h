// SHA-256 (FIPS 180-4), streamed or in one call.
//
// A Sha256 takes bytes in any pieces; the digest depends on their concatenation alone. finish() ends it: nothing may be
// called afterwards. Uses the CPU's SHA instructions where it has them. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  Sha256Digest finish();

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_ = {};  // the first length_ % 64 bytes wait for a whole block
  uint64_t length_ = 0;
};

Sha256Digest sha256(std::span<const std::byte> bytes);

}  // namespace quire
