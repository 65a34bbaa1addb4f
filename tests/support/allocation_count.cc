#include "support/allocation_count.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <new>
#include <utility>

namespace {

constexpr int kShownTraces = 4;

std::atomic<bool> is_counting = false;
std::atomic<int> allocations = 0;
thread_local bool counted_thread = true;

// Where the first ones come from goes to standard error.
void count_allocation() {
  if (!is_counting.load(std::memory_order_relaxed) || !counted_thread) return;
  if (allocations.fetch_add(1) >= kShownTraces) return;
  counted_thread = false;
  void* frames[32];
  constexpr char kTitle[] = "allocated in a steady step:\n";
  if (write(STDERR_FILENO, kTitle, sizeof kTitle - 1) > 0)
    backtrace_symbols_fd(frames, backtrace(frames, std::size(frames)), STDERR_FILENO);
  counted_thread = true;
}

void* allocate_or_null(size_t size, size_t alignment) noexcept {
  count_allocation();
  void* memory = nullptr;
  const int error = posix_memalign(&memory, std::max(alignment, sizeof(void*)), std::max<size_t>(size, 1));
  return error == 0 ? memory : nullptr;
}

void* allocate(size_t size, size_t alignment) {
  void* memory = allocate_or_null(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](size_t size) { return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t size, std::align_val_t alignment) { return allocate(size, static_cast<size_t>(alignment)); }
void* operator new[](size_t size, std::align_val_t alignment) { return allocate(size, static_cast<size_t>(alignment)); }
// Sanitizers have their own of these, which do not call the ones above.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace quire::test {

void leave_out_this_thread() { counted_thread = false; }

void start_count() {
  const bool before = std::exchange(counted_thread, false);
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first call loads a library
  counted_thread = before;
  allocations = 0;
  is_counting = true;
}

void stop_count() { is_counting = false; }
bool counting() { return is_counting; }
int counted_allocations() { return allocations; }

}  // namespace quire::test
