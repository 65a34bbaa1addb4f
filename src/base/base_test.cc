#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

// IEEE 754 binary16 evaluated by its definition, in double.
double half_by_definition(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryFiniteValueIsExactAlsoWhenDenormalsAreFlushed) {
  set_flush_denormals();
  for (uint32_t h = 0; h < 0x10000; ++h) {
    if (((h >> 10) & 31) == 31) continue;
    ASSERT_EQ(static_cast<double>(half_to_float(static_cast<uint16_t>(h))),
              half_by_definition(static_cast<uint16_t>(h)));
  }
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(half_to_float(0x7e00)));
}

TEST(Half, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {  // between every half and the next
    const auto low = static_cast<uint16_t>(h), high = static_cast<uint16_t>(h + 1);
    ASSERT_EQ(float_to_half(half_to_float(low)), low);
    const auto middle = static_cast<float>((half_by_definition(low) + half_by_definition(high)) / 2);  // exact
    const auto bits = std::bit_cast<uint32_t>(middle);
    ASSERT_EQ(float_to_half(middle), h % 2 == 0 ? low : high) << h;
    ASSERT_EQ(float_to_half(std::bit_cast<float>(bits - 1)), low) << h;
    ASSERT_EQ(float_to_half(std::bit_cast<float>(bits + 1)), high) << h;
    ASSERT_EQ(float_to_half(-middle), float_to_half(middle) | 0x8000) << h;
  }
  EXPECT_EQ(float_to_half(65504.0F), 0x7bff);
  EXPECT_EQ(float_to_half(std::nextafter(65520.0F, 0.0F)), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_half(-INFINITY), 0xfc00);
  EXPECT_EQ(float_to_half(1e-45F), 0);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::bit_cast<float>(0x7f800001U)))));
}

TEST(Bfloat16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000U)), 0x3f80);  // a tie goes to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000U)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001U)))));
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = bf16_to_float(static_cast<uint16_t>(h));
    if (std::isnan(f)) continue;
    ASSERT_EQ(float_to_bf16(f), h);
  }
}

TEST(Allocator, GivesZeroedAlignedMemoryAndCountsIt) {
  Allocator allocator;
  {
    for (size_t size : {size_t{1}, size_t{4096}, (size_t{2} << 20) + 1}) {
      auto buffer = allocator.allocate(size);
      ASSERT_TRUE(buffer);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
      EXPECT_EQ(allocator.in_use(), size);
      EXPECT_EQ(buffer->data()[0], std::byte{0});
      EXPECT_EQ(buffer->data()[size - 1], std::byte{0});
      std::memset(buffer->data(), 1, size);
    }
  }
  EXPECT_EQ(allocator.in_use(), 0U);
  auto impossible = allocator.allocate(SIZE_MAX / 4);
  ASSERT_FALSE(impossible);
  EXPECT_EQ(impossible.error().kind, ErrorKind::kExhausted);
}

// Pieces of one slab and of the next, and one too large for a slab: zeroed, aligned, apart, and alive without the
// others.
TEST(Allocator, PiecesLieBesideEachOtherAndLiveAlone) {
  Allocator allocator;
  std::vector<Buffer> pieces;
  size_t total = 0;
  for (size_t i = 0; i < 20; i++) {
    const size_t size = (size_t{5} << 20) + i * 1000 + 1;
    auto piece = allocator.allocate_beside(i == 10 ? size * 4 : size);
    ASSERT_TRUE(piece);
    total += piece->size();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 64, 0U);
    for (std::byte* end : {piece->data(), piece->data() + piece->size() - 1}) {
      EXPECT_EQ(*end, std::byte{0}) << i;
      *end = static_cast<std::byte>(i + 1);
    }
    pieces.push_back(std::move(*piece));
  }
  EXPECT_EQ(allocator.in_use(), total);
  for (size_t i = 0; i < 20; i++) EXPECT_EQ(pieces[i].data()[0], static_cast<std::byte>(i + 1));
  pieces.erase(pieces.begin(), pieces.end() - 1);
  EXPECT_EQ(allocator.in_use(), pieces[0].size());
  EXPECT_EQ(pieces[0].data()[pieces[0].size() - 1], std::byte{20});
  pieces.clear();
  EXPECT_EQ(allocator.in_use(), 0U);
  EXPECT_FALSE(allocator.allocate_beside(SIZE_MAX / 4));
}

TEST(Allocator, OverAFileKeepsWhatIsWrittenAndLeavesNoName) {
  const std::filesystem::path folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "build" / "allocator_test";
  std::filesystem::create_directories(folder);
  {
    auto allocator = Allocator::over_file(folder);
    ASSERT_TRUE(allocator) << allocator.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    std::vector<Buffer> buffers;
    for (size_t size : {size_t{1}, size_t{5000}, (size_t{9} << 20) + 1}) {
      auto buffer = (*allocator)->allocate(size);
      auto piece = (*allocator)->allocate_beside(size);
      ASSERT_TRUE(buffer && piece);
      for (Buffer* made : {&*buffer, &*piece}) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(made->data()) % 64, 0U);
        EXPECT_TRUE(std::ranges::all_of(made->bytes(), [](std::byte b) { return b == std::byte{0}; }));
        std::memset(made->data(), static_cast<int>(buffers.size()) + 1, size);
        buffers.push_back(std::move(*made));
      }
    }
    for (size_t i = 0; i < buffers.size(); ++i)
      EXPECT_TRUE(std::ranges::all_of(buffers[i].bytes(), [&](std::byte b) { return b == std::byte(i + 1); })) << i;
    buffers.clear();
    EXPECT_EQ((*allocator)->in_use(), 0U);
  }
  std::filesystem::remove(folder);
}

// As a full disk does, the limit on files' sizes refuses to make the file longer.
TEST(Allocator, OverAFileSaysThatThereIsNoRoom) {
  auto allocator = Allocator::over_file(QUIRE_SOURCE_DIR);
  ASSERT_TRUE(allocator) << allocator.error().message;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small = {1 << 16, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto fits = (*allocator)->allocate(1 << 15), full = (*allocator)->allocate(1 << 16);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(fits);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(full.error().message.find("65536 bytes"), std::string::npos) << full.error().message;
}

TEST(Allocator, OverAFileWantsAFolderOnADisk) {
  const auto none = Allocator::over_file("/no/such/folder");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().param, "offload_dir");
  struct statfs system = {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) GTEST_SKIP() << "/dev/shm is not in memory here";
  const auto memory = Allocator::over_file("/dev/shm");
  ASSERT_FALSE(memory);
  EXPECT_NE(memory.error().message.find("lies in memory"), std::string::npos) << memory.error().message;
}

TEST(Cpu, NamesParseBackAndUnknownOnesDoNot) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) EXPECT_EQ(*parse_isa(name_of(isa)), isa);
  EXPECT_FALSE(parse_isa("neon"));
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(available_memory(), size_t{1} << 20);
}

TEST(Cpu, FeaturesAreThoseThatLinuxLists) {
  std::ifstream in("/proc/cpuinfo");
  std::string flags;
  while (!flags.starts_with("flags") && std::getline(in, flags)) continue;
  const auto listed = [&](const std::string& name) {
    return (flags + " ").find(" " + name + " ") != std::string::npos;
  };
  const CpuFeatures cpu = detect_cpu();
  EXPECT_EQ(cpu.avx2, listed("avx2") && listed("fma") && listed("f16c"));
  EXPECT_EQ(cpu.avx_vnni, cpu.avx2 && listed("avx_vnni"));
  EXPECT_EQ(cpu.avx512_bf16, cpu.avx512 && listed("avx512_bf16"));
  // Of tiles, the kernel may refuse the use; then neither kind is there.
  if (!cpu.amx_int8 && !cpu.amx_bf16) return;
  EXPECT_EQ(cpu.amx_int8, listed("amx_tile") && listed("amx_int8"));
  EXPECT_EQ(cpu.amx_bf16, listed("amx_tile") && listed("amx_bf16"));
}

}  // namespace
}  // namespace quire
