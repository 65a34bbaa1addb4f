#include "cache/evicted_keys.h"

#include <algorithm>
#include <bit>

namespace quire::cache {

EvictedKeys::EvictedKeys(int64_t capacity)
    : capacity_(static_cast<size_t>(capacity)), buckets_(std::bit_ceil(capacity_ + 1), kNone), complete_(capacity > 0) {
  entries_.reserve(capacity_);
}

int32_t& EvictedKeys::bucket_of(const PrefixIndex::Key& key) {
  return buckets_[static_cast<size_t>(PrefixIndex::hash_of(key)) & (buckets_.size() - 1)];
}

void EvictedKeys::unlink(int32_t entry) {
  int32_t* link = &bucket_of(entries_[static_cast<size_t>(entry)].key);
  while (*link != entry) link = &entries_[static_cast<size_t>(*link)].next;
  *link = entries_[static_cast<size_t>(entry)].next;
}

void EvictedKeys::add(const PrefixIndex::Key& key, const Eviction& eviction) {
  if (entries_.size() == capacity_) complete_ = false;
  if (capacity_ == 0) return;
  const auto place = static_cast<int32_t>(entries_.size() < capacity_ ? entries_.size() : oldest_);
  if (entries_.size() < capacity_) {
    entries_.emplace_back();
  } else {
    unlink(place);
    oldest_ = (oldest_ + 1) % capacity_;
  }
  int32_t& bucket = bucket_of(key);
  entries_[static_cast<size_t>(place)] = {key, eviction, bucket};
  bucket = place;
}

std::optional<Eviction> EvictedKeys::find(const PrefixIndex::Key& key) const {
  int32_t entry = buckets_[static_cast<size_t>(PrefixIndex::hash_of(key)) & (buckets_.size() - 1)];
  while (entry != kNone && entries_[static_cast<size_t>(entry)].key != key) {
    entry = entries_[static_cast<size_t>(entry)].next;
  }
  if (entry == kNone) return std::nullopt;
  return entries_[static_cast<size_t>(entry)].eviction;
}

void EvictedKeys::forget() {
  std::ranges::fill(buckets_, kNone);
  entries_.clear();
  oldest_ = 0;
  complete_ = false;
}

}  // namespace quire::cache
