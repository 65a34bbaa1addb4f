#include "cache/prefix_index.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/check.h"

namespace quire::cache {

PrefixIndex::PrefixIndex(int64_t num_blocks)
    : buckets_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), kNone),
      first_of_block_(static_cast<size_t>(num_blocks), kNone) {
  entries_.reserve(static_cast<size_t>(num_blocks));
}

// The digest is uniform already; the group only has to separate equal digests.
uint64_t PrefixIndex::hash_of(const Key& key) {
  uint64_t word;
  std::memcpy(&word, key.hash.data(), sizeof word);
  return word + static_cast<uint64_t>(key.group.value) * 0x9e3779b97f4a7c15U;
}

size_t PrefixIndex::bucket_of(const Key& key) const {
  return static_cast<size_t>(hash_of(key)) & (buckets_.size() - 1);
}

int32_t PrefixIndex::new_entry() {
  if (free_entries_ == kNone) {
    entries_.emplace_back();
    return static_cast<int32_t>(entries_.size() - 1);
  }
  const int32_t e = free_entries_;
  free_entries_ = at(e).next_in_bucket;
  return e;
}

void PrefixIndex::insert(const Key& key, BlockId block, int64_t num_tokens) {
  QUIRE_CHECK(block != kNullBlock && slot(block) < first_of_block_.size());
  if (has(key, block)) return;
  const int32_t added = new_entry();
  at(added) = {key, block, num_tokens, kNone, first_of_block_[slot(block)]};
  first_of_block_[slot(block)] = added;
  int32_t* tail = &buckets_[bucket_of(key)];
  while (*tail != kNone) tail = &at(*tail).next_in_bucket;
  *tail = added;
  ++size_;
}

bool PrefixIndex::has(const Key& key, BlockId block) const {
  for (int32_t e = first_of_block_[slot(block)]; e != kNone; e = at(e).next_of_block) {
    if (at(e).key == key) return true;
  }
  return false;
}

BlockId PrefixIndex::find(const Key& key) const {
  for (int32_t e = buckets_[bucket_of(key)]; e != kNone; e = at(e).next_in_bucket) {
    if (at(e).key == key) return at(e).block;
  }
  return kNullBlock;
}

int64_t PrefixIndex::published_tokens(BlockId block) const {
  int64_t longest = 0;
  for_each_key(block, [&](const Key&, int64_t tokens) { longest = std::max(longest, tokens); });
  return longest;
}

void PrefixIndex::unlink_from_bucket(int32_t e) {
  int32_t* link = &buckets_[bucket_of(at(e).key)];
  while (*link != e) link = &at(*link).next_in_bucket;
  *link = at(e).next_in_bucket;
}

int PrefixIndex::forget(BlockId block) {
  int removed = 0;
  int32_t e = first_of_block_[slot(block)];
  first_of_block_[slot(block)] = kNone;
  while (e != kNone) {
    const int32_t next = at(e).next_of_block;
    unlink_from_bucket(e);
    at(e) = {};
    at(e).next_in_bucket = free_entries_;
    free_entries_ = e;
    --size_;
    ++removed;
    e = next;
  }
  return removed;
}

void PrefixIndex::move(BlockId from, BlockId to) {
  QUIRE_CHECK(!is_published(to));
  for (int32_t e = first_of_block_[slot(from)]; e != kNone; e = at(e).next_of_block) at(e).block = to;
  std::swap(first_of_block_[slot(from)], first_of_block_[slot(to)]);
}

void PrefixIndex::clear() {
  std::fill(buckets_.begin(), buckets_.end(), kNone);
  std::fill(first_of_block_.begin(), first_of_block_.end(), kNone);
  entries_.clear();
  free_entries_ = kNone;
  size_ = 0;
}

Result<void> PrefixIndex::integrity() const {
  int64_t in_buckets = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int32_t e = buckets_[bucket]; e != kNone; e = at(e).next_in_bucket) {
      if (++in_buckets > size_) return fail(ErrorKind::kInternal, "prefix index: a bucket's chain has a cycle");
      if (bucket_of(at(e).key) != bucket) {
        return fail(ErrorKind::kInternal, fmt::format("prefix index: entry of block {} is in bucket {}, not its own",
                                                      at(e).block.value, bucket));
      }
    }
  }
  int64_t of_blocks = 0;
  for (size_t block = 0; block < first_of_block_.size(); ++block) {
    for (int32_t e = first_of_block_[block]; e != kNone; e = at(e).next_of_block) {
      if (++of_blocks > size_) return fail(ErrorKind::kInternal, "prefix index: a block's chain has a cycle");
      if (slot(at(e).block) != block) {
        return fail(ErrorKind::kInternal,
                    fmt::format("prefix index: block {} lists an entry of block {}", block, at(e).block.value));
      }
    }
  }
  if (in_buckets != size_ || of_blocks != size_) {
    return fail(ErrorKind::kInternal, fmt::format("prefix index: {} entries, {} in buckets, {} listed by blocks", size_,
                                                  in_buckets, of_blocks));
  }
  return {};
}

}  // namespace quire::cache
