#include "base/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlab = size_t{64} << 20;
constexpr size_t kLargestPiece = kSlab / 8;  // larger ones waste little of a mapping of their own
constexpr size_t kPieceAlignment = 64;

}  // namespace

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (slab_ == nullptr) munmap(data_, mapped_);
  owner_->in_use_.fetch_sub(size_, std::memory_order_relaxed);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(slab_, other.slab_);
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

Result<Buffer> Allocator::allocate_beside(size_t size) {
  if (size == 0 || size > kLargestPiece) return allocate(size);
  const std::lock_guard lock(mutex_);
  if (slab_ == nullptr || slab_used_ + size > kSlab) {
    auto memory = allocate(kSlab);
    if (!memory) return std::unexpected(memory.error());
    in_use_.fetch_sub(kSlab, std::memory_order_relaxed);  // its pieces count
    memory->size_ = 0;
    slab_ = std::make_shared<Buffer>(std::move(*memory));
    slab_used_ = 0;
  }
  Buffer piece;
  piece.data_ = slab_->data_ + slab_used_;
  piece.size_ = size;
  piece.slab_ = slab_;
  piece.owner_ = this;
  in_use_.fetch_add(size, std::memory_order_relaxed);
  slab_used_ = (slab_used_ + size + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  return piece;
}

}  // namespace quire
