// A ThreadPool runs one function on all of its workers at once: fork, work, join.
//
// Worker 0 is the calling thread; the others are helpers, which spin for about a millisecond after their last work,
// then sleep. A round trip costs well under a microsecond while they spin. The caller does not wait for a helper that
// has not begun: it does that worker's part itself, so a core that is busy elsewhere costs its share of speed, never a
// stall. Every worker computes with flush-to-zero and denormals-are-zero (docs/determinism.md, rule 12), and so does a
// caller from its first run().
//
// One thread at a time may call run() or what is made of it; calls do not nest. The function must not throw.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire {

// Sets flush-to-zero and denormals-are-zero for the calling thread. Idempotent.
void set_flush_denormals();

class ThreadPool {
 public:
  // `threads` >= 1 workers, the caller included; fewer if the system gives no more threads.
  explicit ThreadPool(int threads);
  // One worker for each of these CPUs, at least one. Helpers are pinned to theirs at once.
  explicit ThreadPool(std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  // Pins the calling thread to the CPU of worker 0, which it is to be from now on; nothing without CPUs.
  void pin_caller() const;

  // Calls f(worker) once for each worker = 0..size()-1, on as many threads as are free, and returns when all have
  // returned.
  template <class F>
  void run(F&& f) {
    using Fn = std::remove_reference_t<F>;
    run_erased([](void* context, int worker) { (*static_cast<Fn*>(context))(worker); },
               const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

  // Each worker has a share of pieces 0..pieces-1, begun in order; one that is done with its own takes those that
  // others have not begun. Calls f(share, piece) once for each, and returns when all have returned. A share names work,
  // not the thread that does it: two may do pieces of one at once.
  template <class F>
  void run_pieces(int pieces, F&& f) {
    reset_pieces();
    run([&](int worker) {
      for (int i = 0; i < size_; i++) {
        const int share = worker + i < size_ ? worker + i : worker + i - size_;
        for (int piece = take_piece(share); piece < pieces; piece = take_piece(share)) f(share, piece);
      }
    });
  }

  // Cuts 0..count-1 into one contiguous part per worker and calls f(begin, end) for each non-empty part; or f(worker,
  // begin, end), if f takes that, for what each worker has of its own.
  template <class F>
  void split(int count, F&& f) {
    const auto part = [&](int worker, int begin, int end) {
      if constexpr (std::is_invocable_v<F&, int, int, int>) {
        f(worker, begin, end);
      } else {
        f(begin, end);
      }
    };
    if (size_ == 1 || count <= 1) {
      run_inline_setup();
      if (count > 0) part(0, 0, count);
      return;
    }
    run([&](int worker) {
      const int begin = static_cast<int>(static_cast<long long>(count) * worker / size_);
      const int end = static_cast<int>(static_cast<long long>(count) * (worker + 1) / size_);
      if (begin < end) part(worker, begin, end);
    });
  }

 private:
  using Erased = void (*)(void* context, int worker);
  void run_erased(Erased function, void* context);
  void run_inline_setup();
  void reset_pieces();
  int take_piece(int share);

  ThreadPool(int threads, std::vector<int> cpus);

  struct Shared;
  int size_;
  std::vector<int> cpus_;  // one a worker, or none
  std::unique_ptr<Shared> shared_;
};

}  // namespace quire
