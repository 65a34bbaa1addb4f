// Remembers the keys of the latest evictions, and when they were: so that a miss can be explained.
//
// A bounded memory, reserved from the start: beyond `capacity` keys the oldest is forgotten; without any capacity
// nobody needs to add. complete() tells whether a key that is not found was never evicted at all. Adding and finding
// cost O(1). Engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/prefix_index.h"

namespace quire::cache {

struct Eviction {
  double when = 0;       // seconds, by the clock of those who add
  bool demoted = false;  // the block was of the lowest rank: see BlockPool
};

class EvictedKeys {
 public:
  explicit EvictedKeys(int64_t capacity);

  void add(const PrefixIndex::Key& key, const Eviction& eviction);
  // The latest eviction of the key that is remembered.
  std::optional<Eviction> find(const PrefixIndex::Key& key) const;
  bool complete() const { return complete_; }
  // Nothing is known of the time before.
  void forget();

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    PrefixIndex::Key key;
    Eviction eviction;
    int32_t next = kNone;  // older, in the same bucket
  };

  int32_t& bucket_of(const PrefixIndex::Key& key);
  void unlink(int32_t entry);

  size_t capacity_;
  std::vector<int32_t> buckets_;  // a power of two; the latest entry of each
  std::vector<Entry> entries_;    // a ring
  size_t oldest_ = 0;
  bool complete_;
};

}  // namespace quire::cache
