#include "base/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  munmap(data_, mapped_);
  owner_->in_use_.fetch_sub(size_, std::memory_order_relaxed);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(owner_, other.owner_);
}

Result<Buffer> Allocator::allocate(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const bool huge = size >= kHugePage;
  const size_t unit = huge ? kHugePage : page;
  const std::string refusal = "cannot allocate " + std::to_string(size) + " bytes";
  if (size > SIZE_MAX / 2) return fail(ErrorKind::kExhausted, refusal);
  const size_t mapped = (size + unit - 1) / unit * unit;

  // Map one unit more, then give back what lies before and behind the aligned part.
  const size_t span = huge ? mapped + unit : mapped;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return fail(ErrorKind::kExhausted, refusal);
  auto* start = static_cast<std::byte*>(raw);
  if (huge) {
    const size_t before = (unit - reinterpret_cast<uintptr_t>(start) % unit) % unit;
    if (before > 0) munmap(start, before);
    const size_t behind = span - before - mapped;
    if (behind > 0) munmap(start + before + mapped, behind);
    start += before;
    madvise(start, mapped, MADV_HUGEPAGE);
  }
  buffer.data_ = start;
  buffer.size_ = size;
  buffer.mapped_ = mapped;
  buffer.owner_ = this;
  in_use_.fetch_add(size, std::memory_order_relaxed);
  return buffer;
}

}  // namespace quire
