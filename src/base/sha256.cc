#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sha256_blocks.h"

namespace quire {
namespace sha256_blocks {
namespace {

uint32_t load_big_endian(const std::byte* p) {
  return std::to_integer<uint32_t>(p[0]) << 24 | std::to_integer<uint32_t>(p[1]) << 16 |
         std::to_integer<uint32_t>(p[2]) << 8 | std::to_integer<uint32_t>(p[3]);
}

std::array<uint32_t, 64> message_schedule(const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  return w;
}

}  // namespace

void compress_portable(State& state, const std::byte* blocks, size_t count) {
  for (; count > 0; --count, blocks += 64) {
    const auto w = message_schedule(blocks);
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1;
      d = c, c = b, b = a, a = t1 + t2;
    }
    const State round = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += round[i];
  }
}

}  // namespace sha256_blocks

namespace {

constexpr size_t kBlock = 64;

void compress(sha256_blocks::State& state, const std::byte* blocks, size_t count) {
  static const sha256_blocks::Compress chosen = [] {
    const auto hardware = sha256_blocks::hardware_compress();
    return hardware != nullptr ? hardware : &sha256_blocks::compress_portable;
  }();
  chosen(state, blocks, count);
}

}  // namespace

void Sha256::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const size_t held = length_ % kBlock;
  length_ += bytes.size();
  if (held != 0) {
    const size_t taken = std::min(bytes.size(), kBlock - held);
    std::memcpy(pending_.data() + held, bytes.data(), taken);
    bytes = bytes.subspan(taken);
    if (held + taken < kBlock) return;
    compress(state_, pending_.data(), 1);
  }
  const size_t whole = bytes.size() / kBlock;
  if (whole > 0) compress(state_, bytes.data(), whole);
  bytes = bytes.subspan(whole * kBlock);
  if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
}

Sha256Digest Sha256::finish() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 2 * kBlock> tail = {};  // 0x80, zeros up to 8 bytes before a block's end, the length in bits
  const size_t held = length_ % kBlock;
  const size_t padded = held < kBlock - 8 ? kBlock : 2 * kBlock;
  std::memcpy(tail.data(), pending_.data(), held);
  tail[held] = std::byte{0x80};
  for (size_t i = 0; i < 8; ++i) tail[padded - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  compress(state_, tail.data(), padded / kBlock);

  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace quire
