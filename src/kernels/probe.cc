#include "kernels/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "kernels/gemm_kernels.h"

#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)
#include <immintrin.h>

#include "kernels/avx512/tile_config.h"
#endif

namespace quire::kernels {
namespace {

constexpr size_t kBytes = size_t{1} << 30;  // more than any last-level cache
constexpr size_t kCachedBytes = size_t{256}
                                << 10;  // of each worker: no first-level cache holds it, every second-level one does
constexpr int kPasses = 200;
constexpr int kRounds = 5;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_rate(double amount, ThreadPool& pool, const std::function<void(int)>& work) {
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i) {
    const double begin = now_seconds();
    pool.run(work);
    rates.push_back(amount / (now_seconds() - begin));
  }
  std::ranges::sort(rates);
  return rates[kRounds / 2];
}

std::atomic<uint64_t> sink;  // keeps the results

struct Chains {
  Unit unit;
  double multiply_adds;  // of one call
  uint64_t (*run)();
};

// In vectors of the compiler's, whatever the CPU: memory is slower than any.
uint64_t read_all(std::span<const std::byte> bytes) {
  constexpr size_t kStreams = 8;
  using Words [[gnu::vector_size(32), gnu::may_alias]] = uint64_t;
  Words sums[kStreams] = {};
  for (size_t i = 0; i < bytes.size(); i += sizeof sums)
    for (size_t s = 0; s < kStreams; ++s)
      sums[s] |= *reinterpret_cast<const Words*>(bytes.data() + i + s * sizeof sums[0]);
  for (size_t s = 1; s < kStreams; ++s) sums[0] |= sums[s];
  return sums[0][0] | sums[0][1] | sums[0][2] | sums[0][3];
}

// As an operator passes over rows: one read, one written.
uint64_t copy_often(std::span<std::byte> bytes) {
  const size_t half = bytes.size() / 2;
  for (int i = 0; i < kPasses; ++i) {
    std::memcpy(bytes.data() + (i % 2 == 0 ? half : 0), bytes.data() + (i % 2 == 0 ? 0 : half), half);
    asm volatile("" : : "r"(bytes.data()) : "memory");
  }
  return static_cast<uint64_t>(bytes[0]);
}

#if defined(__x86_64__) && !defined(QUIRE_SCALAR_ONLY)

// Every function of this file runs on the CPUs whose instructions it names, and nothing else in it does: that is why
// they stand together here and not in the folders of the instruction sets.

constexpr int kChains = 16;  // in registers of 64 bytes; as many of 32 bytes leave none for the factors
constexpr int kNarrowChains = 12;
constexpr int kSteps = 2'000'000;    // of each chain
constexpr int kTileSteps = 200'000;  // of each of four

// The empty asm keeps the factors from being known, else the loop is folded.
__attribute__((target("avx512f"))) uint64_t chains_512_f32() {
  __m512 sums[kChains] = {}, a = _mm512_set1_ps(1e-3F), b = _mm512_set1_ps(2e-3F);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_fmadd_ps(a, b, sums[c]);
  }
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm512_cvtss_f32(sums[0]));
}

__attribute__((target("avx512f,avx512vnni"))) uint64_t chains_512_int8() {
  __m512i sums[kChains] = {}, a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
  }
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(sums[0])));
}

// vdpbf16ps in words of the assembler: the types of its intrinsics differ between compilers.
__attribute__((target("avx512f,avx512bf16"))) uint64_t chains_512_bf16() {
  __m512 sums[kChains] = {};
  __m512i a = _mm512_set1_epi16(0x3c00), b = _mm512_set1_epi16(0x3c00);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) asm volatile("vdpbf16ps %2, %1, %0" : "+v"(sums[c]) : "v"(a), "v"(b));
  }
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm512_cvtss_f32(sums[0]));
}

__attribute__((target("avx2,fma"))) uint64_t chains_256_f32() {
  __m256 sums[kNarrowChains] = {}, a = _mm256_set1_ps(1e-3F), b = _mm256_set1_ps(2e-3F);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int c = 0; c < kNarrowChains; ++c) sums[c] = _mm256_fmadd_ps(a, b, sums[c]);
  }
  for (int c = 1; c < kNarrowChains; ++c) sums[0] = _mm256_add_ps(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm256_cvtss_f32(sums[0]));
}

__attribute__((target("avx2,avxvnni"))) uint64_t chains_256_int8_vnni() {
  __m256i sums[kNarrowChains] = {}, a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int c = 0; c < kNarrowChains; ++c) sums[c] = _mm256_dpbusd_avx_epi32(sums[c], a, b);
  }
  for (int c = 1; c < kNarrowChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0])));
}

// Pairs to words, words to sums, and the sum: three instructions for what vpdpbusd does.
__attribute__((target("avx2"))) uint64_t chains_256_int8() {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[kNarrowChains] = {}, a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kNarrowChains; ++c) {
      asm volatile("" : "+x"(a), "+x"(b));
      sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  for (int c = 1; c < kNarrowChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
  return static_cast<uint64_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(sums[0])));
}

// Sixteen rows by 64 bytes by sixteen columns, for both types; all zeros.
constexpr avx512::TileConfig kFullTiles = avx512::tile_config(16, 64);

__attribute__((target("amx-tile,amx-int8"))) uint64_t chains_tile_int8() {
  _tile_loadconfig(&kFullTiles);
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return 0;
}

__attribute__((target("amx-tile,amx-bf16"))) uint64_t chains_tile_bf16() {
  _tile_loadconfig(&kFullTiles);
  for (int i = 0; i < kTileSteps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 0;
}

std::vector<Chains> chains_of(const KernelTable& table) {
  std::vector<Chains> all;
  if (table.isa == Isa::kAvx512) {
    constexpr double kAll = double{kChains} * kSteps;
    all = {{Unit::kF32, 16 * kAll, chains_512_f32}, {Unit::kInt8, 64 * kAll, chains_512_int8}};
    // Without vdpbf16ps a pair of products is two FMAs.
    all.push_back(table.native_bf16 ? Chains{Unit::kBF16, 32 * kAll, chains_512_bf16}
                                    : Chains{Unit::kBF16, 16 * kAll, chains_512_f32});
  }
  if (table.isa == Isa::kAvx2) {
    constexpr double kAll = double{kNarrowChains} * kSteps;
    const bool vnni = table.gemm == &gemm_kernels_avx2_vnni();
    all = {{Unit::kF32, 8 * kAll, chains_256_f32},
           {Unit::kBF16, 8 * kAll, chains_256_f32},
           {Unit::kInt8, 32 * kAll, vnni ? chains_256_int8_vnni : chains_256_int8}};
  }
  constexpr double kTiles = 4.0 * kTileSteps * 16 * 16;
  if (table.wide_bf16 != nullptr) all.push_back({Unit::kTileBF16, 32 * kTiles, chains_tile_bf16});
  if (table.wide_int8 != nullptr) all.push_back({Unit::kTileInt8, 64 * kTiles, chains_tile_int8});
  return all;
}

#else

std::vector<Chains> chains_of(const KernelTable&) { return {}; }

#endif

}  // namespace

Result<MachinePeaks> probe_peaks(const KernelTable& table, ThreadPool& pool, Allocator& allocator) {
  auto memory = allocator.allocate(kBytes);
  if (!memory) return std::unexpected(memory.error());
  const auto workers = static_cast<size_t>(pool.size());
  const size_t part = kBytes / workers / 4096 * 4096;
  const auto part_of = [&](int worker) { return memory->bytes().subspan(static_cast<size_t>(worker) * part, part); };
  pool.run([&](int worker) { std::ranges::fill(part_of(worker), std::byte{1}); });

  MachinePeaks peaks;
  peaks.bytes =
      median_rate(static_cast<double>(part * workers), pool, [&](int worker) { sink += read_all(part_of(worker)); });
  peaks.cached_bytes = median_rate(static_cast<double>(kCachedBytes * kPasses * workers), pool,
                                   [&](int worker) { sink += copy_often(part_of(worker).first(kCachedBytes)); });
  for (const Chains& chains : chains_of(table))
    peaks.operations[static_cast<size_t>(chains.unit)] =
        median_rate(2 * chains.multiply_adds * static_cast<double>(workers), pool, [&](int) { sink += chains.run(); });
  return peaks;
}

}  // namespace quire::kernels
