// Masks of constrained requests, computed by a few threads of their own while the forward pass runs.
//
// A MaskJob is one request's constraint at work. In a step that samples for it, the engine's thread says want(), gives
// the job to the pool, and whoever has the logits take()s the mask: it computes the mask itself if nobody has begun to,
// else it waits for who has. So a step waits for no thread that has not begun, and which thread computes changes
// nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "quire/constraint.h"
#include "quire/error.h"
#include "quire/request.h"

namespace quire::engine {

class MaskJob {
 public:
  explicit MaskJob(std::shared_ptr<const Constraint> constraint) : constraint_(std::move(constraint)) {}

  // The mask of the next token is wanted. Not while it is wanted already.
  void want();
  // Computes what is wanted, unless somebody has begun to. Any thread.
  void compute();
  // After want(), once: the mask, until the next want().
  Result<std::span<const uint32_t>> take();
  // After take(): goes on by a token of the mask. True if nothing may follow it.
  Result<bool> accept(TokenId token) { return matcher_->accept(token); }

 private:
  enum class State : uint8_t { kIdle, kWanted, kComputing, kReady };

  Result<void> fill();

  const std::shared_ptr<const Constraint> constraint_;
  std::atomic<State> state_ = State::kIdle;
  // Of who computes, then of who takes.
  std::unique_ptr<ConstraintMatcher> matcher_;
  std::vector<uint32_t> mask_;
  std::optional<Error> error_;
};

class MaskPool {
 public:
  explicit MaskPool(int threads);
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  void add(std::shared_ptr<MaskJob> job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<MaskJob>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
