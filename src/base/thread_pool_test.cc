#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace quire {
namespace {

TEST(ThreadPool, RunsEveryWorkerOnceAndWaits) {
  ThreadPool pool(3);
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::atomic<int>> calls(3);
    pool.run([&](int worker) { calls[static_cast<size_t>(worker)]++; });
    for (auto& c : calls) ASSERT_EQ(c.load(), 1);
  }
}

TEST(ThreadPool, WakesHelpersThatSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));  // past the spin time
    std::atomic<int> sum{0};
    pool.run([&](int worker) { sum += worker + 1; });
    ASSERT_EQ(sum.load(), 3);
  }
}

TEST(ThreadPool, SplitCoversTheRangeWithoutOverlap) {
  for (int threads : {1, 2, 5})
    for (int count : {0, 1, 2, 7, 64}) {
      ThreadPool pool(threads);
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.split(count, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) hits[static_cast<size_t>(i)]++;
      });
      for (auto& h : hits) ASSERT_EQ(h.load(), 1);
    }
}

TEST(ThreadPool, EveryPieceIsDoneOnce) {
  for (int threads : {1, 2, 5})
    for (int pieces : {0, 1, 3, 16}) {
      ThreadPool pool(threads);
      for (int round = 0; round < 50; ++round) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(threads * pieces));
        pool.run_pieces(pieces, [&](int worker, int piece) { hits[static_cast<size_t>(worker * pieces + piece)]++; });
        for (auto& h : hits) ASSERT_EQ(h.load(), 1);
      }
    }
}

// The first piece of a share ends only when all others have: it would wait forever for one that no other thread takes.
TEST(ThreadPool, PiecesOfASlowWorkerAreTakenByOthers) {
  constexpr int kPieces = 6;
  for (int slow : {0, 1}) {
    ThreadPool pool(2);
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> done{0};
      pool.run_pieces(kPieces, [&](int worker, int piece) {
        if (worker == slow && piece == 0)
          while (done.load() != 2 * kPieces - 1) std::this_thread::yield();
        done++;
      });
      ASSERT_EQ(done.load(), 2 * kPieces);
    }
  }
}

TEST(ThreadPool, WorkersFlushDenormals) {
  ThreadPool pool(2);
  std::vector<float> products(2);
  volatile float tiny = 1e-38F, tenth = 0.1F;
  pool.run([&](int worker) { products[static_cast<size_t>(worker)] = tiny * tenth; });
  EXPECT_EQ(products[0], 0.0F);
  EXPECT_EQ(products[1], 0.0F);
}

// Helpers that cannot run do not hold up the caller: more workers than cores, all of them needed.
TEST(ThreadPool, ManyMoreWorkersThanCoresStillFinish) {
  ThreadPool pool(64);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> sum{0};
    pool.run([&](int worker) { sum += worker; });
    ASSERT_EQ(sum.load(), 64 * 63 / 2);
  }
}

}  // namespace
}  // namespace quire
