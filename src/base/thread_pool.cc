#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

constexpr int kSpinsBetweenClockReads = 64;
constexpr auto kSpinTime = std::chrono::milliseconds(1);

// Waits until `changed()` or until the spin time is over; true if it changed.
template <class F>
bool spin_until(F&& changed) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsBetweenClockReads; ++i) {
      if (changed()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return changed();
}

}  // namespace

void set_flush_denormals() {
#if defined(__x86_64__)
  constexpr unsigned kFtzDaz = 0x8040;
  if ((_mm_getcsr() & kFtzDaz) != kFtzDaz) _mm_setcsr(_mm_getcsr() | kFtzDaz);
#elif defined(__aarch64__)
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" : : "r"(fpcr | (uint64_t{1} << 24)));
#endif
}

// `generation` counts runs. Each worker but the caller has a Part: who moves its `taken` from g - 1 to g does the part
// in run g, be it the helper or the caller. A run ends when all parts are done, so at its start every `taken` is g - 1,
// and `function` cannot change under a helper that took a part. Helpers register in `sleepers` under the mutex before
// they sleep, so a run that finds no sleeper needs no lock.
struct ThreadPool::Shared {
  struct alignas(64) Part {
    std::atomic<uint64_t> taken{0};
    std::atomic<int> next_piece{0};
  };

  alignas(64) std::atomic<uint64_t> generation{0};
  alignas(64) std::atomic<int> running{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  Erased function = nullptr;
  void* context = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<Part> parts;
  std::vector<std::thread> helpers;

  // Does the worker's part of run g unless somebody else took it.
  void try_part(int worker, uint64_t g) {
    uint64_t before = g - 1;
    if (!parts[static_cast<size_t>(worker)].taken.compare_exchange_strong(before, g, std::memory_order_acq_rel)) return;
    function(context, worker);
    running.fetch_sub(1, std::memory_order_release);
  }

  void help(int worker) {
    set_flush_denormals();
    uint64_t seen = 0;
    for (;;) {
      auto changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!spin_until(changed)) {
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(lock, [&] { return generation.load(std::memory_order_seq_cst) != seen; });
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      try_part(worker, seen);
    }
  }

  void start_generation() {
    generation.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    {
      std::lock_guard lock(mutex);
    }  // a helper between its check and its sleep finishes going to sleep first
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : ThreadPool(threads, {}) {}

ThreadPool::ThreadPool(std::vector<int> cpus) : ThreadPool(static_cast<int>(cpus.size()), cpus) {}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : size_(threads), cpus_(std::move(cpus)), shared_(std::make_unique<Shared>()) {
  QUIRE_CHECK(threads >= 1);
  shared_->parts = std::vector<Shared::Part>(static_cast<size_t>(threads));
  try {
    for (int worker = 1; worker < threads; ++worker)
      shared_->helpers.emplace_back([this, worker] {
        // Where the system refuses, workers run as they would without.
        if (!cpus_.empty()) pin_thread(cpus_[static_cast<size_t>(worker)]);
        shared_->help(worker);
      });
  } catch (const std::system_error&) {
    size_ = static_cast<int>(shared_->helpers.size()) + 1;
  }
}

ThreadPool::~ThreadPool() {
  shared_->stop.store(true, std::memory_order_release);
  shared_->start_generation();
  for (auto& helper : shared_->helpers) helper.join();
}

void ThreadPool::pin_caller() const {
  if (!cpus_.empty()) pin_thread(cpus_.front());
}

void ThreadPool::run_inline_setup() { set_flush_denormals(); }

void ThreadPool::reset_pieces() {
  for (Shared::Part& part : shared_->parts) part.next_piece.store(0, std::memory_order_relaxed);
}

int ThreadPool::take_piece(int share) {
  return shared_->parts[static_cast<size_t>(share)].next_piece.fetch_add(1, std::memory_order_relaxed);
}

void ThreadPool::run_erased(Erased function, void* context) {
  set_flush_denormals();
  if (size_ == 1) return function(context, 0);
  shared_->function = function;
  shared_->context = context;
  shared_->running.store(size_ - 1, std::memory_order_relaxed);
  shared_->start_generation();
  const uint64_t g = shared_->generation.load(std::memory_order_relaxed);
  function(context, 0);
  for (int worker = 1; worker < size_; ++worker) shared_->try_part(worker, g);
  int spins = 0;
  while (shared_->running.load(std::memory_order_acquire) != 0) {
    relax();
    if (++spins % 4096 == 0) std::this_thread::yield();  // the helper may wait for this very core
  }
}

}  // namespace quire
