// A Buffer owns one aligned range of memory; an Allocator is where all weight and cache memory comes from.
//
// Buffers are zero when made (fresh pages of the kernel) and, from 2 MiB on, aligned and advised to huge pages.
// Memory is touched on demand: a large buffer costs nothing until it is written. An Allocator over a file gives memory
// that the system may write to the disk and forget until it is used again: for what may be larger than memory. An
// Allocator may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "quire/error.h"

namespace quire {

class Allocator;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  friend class Allocator;
  void swap(Buffer& other) noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
  std::shared_ptr<Buffer> slab_;  // what it is a piece of, unless it has a mapping of its own
  Allocator* owner_ = nullptr;
};

class Allocator {
 public:
  Allocator() = default;
  ~Allocator();
  // Over a file without a name in `folder`, which ends with this process whatever happens. Room on the disk is taken as
  // memory is asked for. kNotFound if no file can be made there, kUnsupported if the folder lies in memory; both name
  // offload_dir.
  static Result<std::unique_ptr<Allocator>> over_file(const std::filesystem::path& folder);
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // `size` zeroed bytes, aligned to 64 at least. kExhausted if the system refuses, or the disk is full.
  Result<Buffer> allocate(size_t size);

  // The same, for pieces that are many and live long, such as weights: they lie side by side on huge pages, which small
  // mappings of their own would not get. A piece's memory returns to the system when those beside it are gone too.
  Result<Buffer> allocate_beside(size_t size);

  // Bytes of address space handed out and not yet returned.
  size_t in_use() const { return in_use_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  Result<Buffer> allocate_in_file(size_t size);

  int file_ = -1;  // that all memory is of; -1: of none
  std::string folder_;
  size_t file_size_ = 0;  // guarded by file_mutex_
  std::mutex file_mutex_;
  std::atomic<size_t> in_use_{0};
  std::mutex mutex_;              // guards the slab that pieces are taken from
  std::shared_ptr<Buffer> slab_;  // pieces keep theirs alive
  size_t slab_used_ = 0;
};

}  // namespace quire
