// What this machine gives at this moment, as JSON: probe_bench [THREADS].
//
// dram_gb_s: bytes read from memory on huge pages, all threads together. vnni_tops: multiply-adds of vpdpbusd chains,
// two operations each, 0 where the CPU has none. amx: whether the kernel lets programs use AMX. Medians of several
// runs.
#include <fmt/format.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "base/buffer.h"

namespace quire {
namespace {

constexpr size_t kBytes = size_t{1} << 30;  // more than any last-level cache
constexpr int kRounds = 5;
constexpr int kChains = 16;
constexpr int kMultiplyAdds = 5'000'000;  // of each chain
std::atomic<int> sink;                    // keeps the results

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds from all threads' start to the last one's end.
double timed(int threads, const std::function<void(int)>& work) {
  std::barrier gate(threads + 1);
  std::vector<std::jthread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      gate.arrive_and_wait();
      work(t);
      gate.arrive_and_wait();
    });
  gate.arrive_and_wait();
  const double begin = now_seconds();
  gate.arrive_and_wait();
  return now_seconds() - begin;
}

double median_rate(double amount, int threads, const std::function<void(int)>& work) {
  std::vector<double> rates;
  for (int i = 0; i < kRounds; ++i) rates.push_back(amount / timed(threads, work));
  std::ranges::sort(rates);
  return rates[kRounds / 2];
}

__attribute__((target("avx2"))) int read_all(const std::byte* data, size_t size) {
  constexpr int kStreams = 8;
  __m256i sums[kStreams] = {};
  for (size_t i = 0; i < size; i += kStreams * sizeof(__m256i))
    for (size_t s = 0; s < kStreams; ++s)
      sums[s] =
          _mm256_or_si256(sums[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + s * sizeof(__m256i))));
  for (size_t s = 1; s < kStreams; ++s) sums[0] = _mm256_or_si256(sums[0], sums[s]);
  return _mm256_testz_si256(sums[0], sums[0]);
}

__attribute__((target("avx512f,avx512vnni"))) int multiply_add() {
  __m512i sums[kChains] = {};
  __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  for (int i = 0; i < kMultiplyAdds; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));  // else the loop is folded
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
  }
  for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
  alignas(64) int lanes[16];
  _mm512_store_si512(lanes, sums[0]);
  return lanes[0];
}

bool has_amx() {
  constexpr int kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return __builtin_cpu_supports("amx-tile") && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

int probe(int threads) {
  Allocator allocator;
  auto memory = allocator.allocate(kBytes);
  if (!memory) {
    fmt::print(stderr, "error: {}\n", memory.error().message);
    return 1;
  }
  std::ranges::fill(memory->bytes(), std::byte{1});
  const size_t part = kBytes / static_cast<size_t>(threads) / 4096 * 4096;
  const double bytes = static_cast<double>(part) * threads;
  const double dram = median_rate(
      bytes, threads, [&](int t) { sink = read_all(memory->data() + static_cast<size_t>(t) * part, part); });
  double vnni = 0;
  if (__builtin_cpu_supports("avx512vnni"))
    vnni = median_rate(2.0 * 64 * kChains * kMultiplyAdds * threads, threads, [](int) { sink = multiply_add(); });
  fmt::print("{{\"dram_gb_s\": {:.2f}, \"vnni_tops\": {:.3f}, \"amx\": {}}}\n", dram / 1e9, vnni / 1e12, has_amx());
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (threads < 1 || threads > 1024) {
    fmt::print(stderr, "usage: probe_bench [THREADS]\n");
    return 2;
  }
  return quire::probe(threads);
}
