// The PrefixIndex finds cached blocks: (hash, group) -> block.
//
// Several blocks may be published under one key (the same prefix computed twice); the one published first is found, and
// all stay until each is forgotten. One block may be published under several keys of one group (its full length and
// boundaries inside it). The index only knows ids; whether a block is free or held is the pool's concern.
//
// Lookup, insertion and removal cost O(1). There is room for a key of every block from the start, touched as entries
// come. Engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/block_hash.h"

namespace quire::cache {

class PrefixIndex {
 public:
  struct Key {
    BlockHash hash;
    GroupId group;
    bool operator==(const Key&) const = default;
  };
  // Spreads keys evenly.
  static uint64_t hash_of(const Key& key);

  // For blocks 0 .. num_blocks-1.
  explicit PrefixIndex(int64_t num_blocks);

  // Publishes `block`, whose content is the first `num_tokens` tokens of the hash's prefix. A block that already has
  // this very key is left as it is.
  void insert(const Key& key, BlockId block, int64_t num_tokens);

  // The block published first under `key`, or the null block.
  BlockId find(const Key& key) const;

  // True if `block` is published under this key, first or not.
  bool has(const Key& key, BlockId block) const;
  // True if some key leads to `block`.
  bool is_published(BlockId block) const { return first_of_block_[slot(block)] != kNone; }
  // The longest prefix, in tokens, that `block` is published for; 0 if it is not published.
  int64_t published_tokens(BlockId block) const;
  // Calls f(key, num_tokens) for each key of `block`.
  template <class F>
  void for_each_key(BlockId block, F&& f) const {
    for (int32_t e = first_of_block_[slot(block)]; e != kNone; e = at(e).next_of_block) f(at(e).key, at(e).num_tokens);
  }

  // Removes every key of `block`. Returns how many there were.
  int forget(BlockId block);
  // Makes all keys of `from` lead to `to` instead, which must have none. Their places in the order of duplicates stay.
  void move(BlockId from, BlockId to);
  void clear();

  // Entries, duplicates included.
  int64_t size() const { return size_; }

  // kInternal, saying where, if an entry is unreachable, doubly linked or belongs to no block.
  Result<void> integrity() const;

 private:
  static constexpr int32_t kNone = -1;

  struct Entry {
    Key key;
    BlockId block;
    int64_t num_tokens = 0;
    int32_t next_in_bucket = kNone;  // of one key: in the order of publishing
    int32_t next_of_block = kNone;
  };

  static size_t slot(BlockId block) { return static_cast<size_t>(block.value); }
  const Entry& at(int32_t e) const { return entries_[static_cast<size_t>(e)]; }
  Entry& at(int32_t e) { return entries_[static_cast<size_t>(e)]; }
  size_t bucket_of(const Key& key) const;
  int32_t new_entry();
  void unlink_from_bucket(int32_t e);

  std::vector<int32_t> buckets_;  // a power of two
  std::vector<int32_t> first_of_block_;
  std::vector<Entry> entries_;
  int32_t free_entries_ = kNone;  // linked by next_in_bucket
  int64_t size_ = 0;
};

}  // namespace quire::cache
