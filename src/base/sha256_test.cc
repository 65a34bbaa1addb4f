#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/sha256_blocks.h"

namespace quire {
namespace {

std::string hex(const Sha256Digest& digest) {
  std::string out;
  for (std::byte b : digest)
    for (int nibble : {std::to_integer<int>(b >> 4), std::to_integer<int>(b & std::byte{15})})
      out += "0123456789abcdef"[nibble];
  return out;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> out(size);
  uint32_t x = 12345;
  for (auto& b : out) b = static_cast<std::byte>((x = x * 1664525 + 1013904223) >> 24);
  return out;
}

// NIST's examples for FIPS 180-4 and its long-message test.
TEST(Sha256, GivesTheStandardsDigests) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(bytes_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                                "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"))),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hex(sha256(bytes_of(std::string(1000000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  const auto data = pattern(300);
  for (size_t size = 0; size <= data.size(); ++size) {
    const auto whole = sha256(std::span(data).first(size));
    for (size_t piece : std::array<size_t, 6>{1, 7, 63, 64, 65, 130}) {
      Sha256 hash;
      for (size_t at = 0; at < size; at += piece) hash.update(std::span(data).subspan(at, std::min(piece, size - at)));
      ASSERT_EQ(hash.finish(), whole) << size << " bytes in pieces of " << piece;
    }
  }
}

TEST(Sha256, HardwareAgreesWithPortableCode) {
  const auto hardware = sha256_blocks::hardware_compress();
  if (hardware == nullptr) GTEST_SKIP() << "this CPU or build has no SHA instructions";
  const auto data = pattern(64 * 50);
  sha256_blocks::State portable = {1, 2, 3, 4, 5, 6, 7, 8}, fast = portable;
  for (size_t count : std::array<size_t, 4>{1, 2, 3, 50}) {
    sha256_blocks::compress_portable(portable, data.data(), count);
    hardware(fast, data.data(), count);
    ASSERT_EQ(portable, fast) << count << " blocks";
  }
}

}  // namespace
}  // namespace quire
