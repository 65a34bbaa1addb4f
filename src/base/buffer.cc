#include "base/buffer.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>

namespace quire {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlab = size_t{64} << 20;
constexpr size_t kLargestPiece = kSlab / 8;  // larger ones waste little of a mapping of their own
constexpr size_t kPieceAlignment = 64;

size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

std::string refusal(size_t size) { return "cannot allocate " + std::to_string(size) + " bytes"; }

std::string words_of(int error) { return std::generic_category().message(error); }

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

Allocator::~Allocator() {
  slab_.reset();
  if (file_ >= 0) close(file_);
}

Result<std::unique_ptr<Allocator>> Allocator::over_file(const std::filesystem::path& folder) {
  std::string name = (folder / "quire-XXXXXX").string();
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) {
    const std::string reason = words_of(errno);
    return fail(ErrorKind::kNotFound, "offload_dir " + folder.string() + ": no file can be made there: " + reason,
                "offload_dir");
  }
  unlink(name.c_str());
  auto allocator = std::make_unique<Allocator>();
  allocator->file_ = file;
  allocator->folder_ = folder.string();
  struct statfs system = {};
  if (fstatfs(file, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
    return fail(ErrorKind::kUnsupported,
                "offload_dir " + folder.string() + " lies in memory; it must be a folder on a disk", "offload_dir");
  return allocator;
}

Result<Buffer> Allocator::allocate_in_file(size_t size) {
  if (size > SIZE_MAX / 2) return fail(ErrorKind::kExhausted, refusal(size));
  const size_t mapped = rounded_up(size, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const std::lock_guard lock(file_mutex_);
  const auto offset = static_cast<off_t>(file_size_);
  // Without room of its own a page could find the disk full when it is written, which ends a process.
  if (const int error = posix_fallocate(file_, offset, static_cast<off_t>(mapped)); error != 0)
    return fail(ErrorKind::kExhausted,
                "offload_dir " + folder_ + ": no room for " + std::to_string(mapped) + " bytes: " + words_of(error),
                "offload_dir");
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (start == MAP_FAILED) return fail(ErrorKind::kExhausted, refusal(size));
  file_size_ += mapped;
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(start);
  buffer.size_ = size;
  buffer.mapped_ = mapped;
  buffer.owner_ = this;
  in_use_.fetch_add(size, std::memory_order_relaxed);
  return buffer;
}

Result<Buffer> Allocator::allocate(size_t size) {
  Buffer buffer;
  if (size == 0) return buffer;
  if (file_ >= 0) return allocate_in_file(size);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const bool huge = size >= kHugePage;
  const size_t unit = huge ? kHugePage : page;
  if (size > SIZE_MAX / 2) return fail(ErrorKind::kExhausted, refusal(size));
  const size_t mapped = rounded_up(size, unit);

  // Map one unit more, then give back what lies before and behind the aligned part.
  const size_t span = huge ? mapped + unit : mapped;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return fail(ErrorKind::kExhausted, refusal(size));
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
  slab_used_ = rounded_up(slab_used_ + size, kPieceAlignment);
  return piece;
}

}  // namespace quire
