#include "weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/utf8.h"

namespace quire::weights {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::unexpected<Error> system_failure(const std::filesystem::path& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  return fail(missing ? ErrorKind::kNotFound : ErrorKind::kUnsupported,
              fmt::format("cannot read {}: {}", in_quotes(path.native()), std::generic_category().message(error)));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return system_failure(path, errno);
  struct stat status{};
  if (fstat(file.get(), &status) != 0) return system_failure(path, errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorKind::kUnsupported, fmt::format("{} is not a regular file", in_quotes(path.native())));

  MappedFile mapped;
  mapped.size_ = static_cast<size_t>(status.st_size);
  if (mapped.size_ == 0) return mapped;  // there is no mapping of length zero
  void* address = mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    mapped.size_ = 0;
    return system_failure(path, errno);
  }
  mapped.data_ = static_cast<const std::byte*>(address);
  madvise(address, mapped.size_, MADV_SEQUENTIAL);  // weights are read once, front to back
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace quire::weights
