#include "engine/mask_pool.h"

#include <utility>

#include "base/check.h"

namespace quire::engine {

void MaskJob::want() {
  QUIRE_CHECK(state_.load(std::memory_order_relaxed) == State::kIdle);
  state_.store(State::kWanted, std::memory_order_release);
}

void MaskJob::compute() {
  State expected = State::kWanted;
  if (!state_.compare_exchange_strong(expected, State::kComputing, std::memory_order_acq_rel)) return;
  try {
    const Result<void> filled = fill();
    if (!filled) error_ = filled.error();
  } catch (const std::exception& e) {  // out of memory: this request ends
    error_ = Error{ErrorKind::kExhausted, "no memory for a mask", {}};
  }
  state_.store(State::kReady, std::memory_order_release);
  state_.notify_all();
}

Result<void> MaskJob::fill() {
  if (!matcher_) {
    auto started = constraint_->start();
    if (!started) return std::unexpected(started.error());
    matcher_ = std::move(*started);
    mask_.resize(mask_words(constraint_->vocab_size()));
  }
  return matcher_->fill(mask_);
}

Result<std::span<const uint32_t>> MaskJob::take() {
  compute();
  for (State state = state_.load(std::memory_order_acquire); state != State::kReady;
       state = state_.load(std::memory_order_acquire))
    state_.wait(state, std::memory_order_acquire);
  state_.store(State::kIdle, std::memory_order_relaxed);
  if (error_) return std::unexpected(*error_);
  return std::span<const uint32_t>(mask_);
}

MaskPool::MaskPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskPool::add(std::shared_ptr<MaskJob> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void MaskPool::work() {
  for (;;) {
    std::shared_ptr<MaskJob> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.back());
      jobs_.pop_back();
    }
    job->compute();
  }
}

}  // namespace quire::engine
