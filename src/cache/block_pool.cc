#include "cache/block_pool.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::cache {

BlockPool::BlockPool(int64_t total) : index_(total) {
  QUIRE_CHECK(total >= 1 && total <= INT32_MAX);
  refs_.assign(static_cast<size_t>(total), 0);
  links_.resize(static_cast<size_t>(total));
  const auto last = static_cast<int32_t>(total - 1);
  for (int32_t b = 0; b <= last; ++b) links_[static_cast<size_t>(b)] = {b == 0 ? last : b - 1, b == last ? 0 : b + 1};
  free_count_ = total - 1;
}

double BlockPool::usage() const {
  const int64_t usable = total() - 1;
  return usable == 0 ? 0.0 : static_cast<double>(usable - free_count_) / static_cast<double>(usable);
}

void BlockPool::link_between(BlockId block, int32_t previous, int32_t next) {
  links_[slot(block)] = {previous, next};
  links_[static_cast<size_t>(previous)].next = block.value;
  links_[static_cast<size_t>(next)].previous = block.value;
  ++free_count_;
}

void BlockPool::unlink(BlockId block) {
  const Link link = links_[slot(block)];
  links_[static_cast<size_t>(link.previous)].next = link.next;
  links_[static_cast<size_t>(link.next)].previous = link.previous;
  --free_count_;
}

Result<void> BlockPool::take(int64_t count, std::vector<BlockId>& out, const std::function<void(BlockId)>& evicted) {
  if (count > free_count_) {
    return fail(ErrorKind::kExhausted,
                fmt::format("the KV cache has {} free blocks, {} are needed", free_count_, count));
  }
  for (; count > 0; --count) {
    const BlockId block{links_[0].next};
    unlink(block);
    if (index_.is_published(block)) {
      if (evicted) evicted(block);
      index_.forget(block);
      ++evictions_;
    }
    refs_[slot(block)] = 1;
    out.push_back(block);
  }
  return {};
}

void BlockPool::hold(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    if (refs_[slot(block)]++ == 0) unlink(block);
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  int32_t front = 0;  // the last block put to the front
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    QUIRE_CHECK(refs_[slot(block)] > 0);
    if (--refs_[slot(block)] > 0) continue;
    if (index_.is_published(block)) {
      link_between(block, links_[0].previous, 0);
    } else {
      link_between(block, front, links_[static_cast<size_t>(front)].next);
      front = block.value;
    }
  }
}

void BlockPool::discard(BlockId block) {
  index_.forget(block);
  if (!is_free(block)) return;
  unlink(block);
  link_between(block, 0, links_[0].next);
}

std::vector<BlockId> BlockPool::free_list() const {
  std::vector<BlockId> blocks;
  for (int32_t b = links_[0].next; b != 0; b = links_[static_cast<size_t>(b)].next) blocks.emplace_back(b);
  return blocks;
}

Result<void> BlockPool::integrity(std::span<const int> references) const {
  QUIRE_CHECK(references.size() == refs_.size());
  std::vector<bool> listed(refs_.size(), false);
  int64_t count = 0;
  for (int32_t b = links_[0].next; b != 0; b = links_[static_cast<size_t>(b)].next) {
    const auto& link = links_[static_cast<size_t>(b)];
    if (listed[static_cast<size_t>(b)] || ++count > free_count_) {
      return fail(ErrorKind::kInternal, fmt::format("block pool: the free list has a cycle at block {}", b));
    }
    if (links_[static_cast<size_t>(link.next)].previous != b) {
      return fail(ErrorKind::kInternal, fmt::format("block pool: the free list is broken after block {}", b));
    }
    listed[static_cast<size_t>(b)] = true;
  }
  if (count != free_count_) {
    return fail(ErrorKind::kInternal, fmt::format("block pool: {} blocks listed, {} counted free", count, free_count_));
  }
  if (refs_[0] != 0 || references[0] != 0 || index_.is_published(kNullBlock)) {
    return fail(ErrorKind::kInternal, "block pool: the null block is counted or published");
  }
  for (size_t b = 1; b < refs_.size(); ++b) {
    if (refs_[b] != references[b]) {
      return fail(ErrorKind::kInternal,
                  fmt::format("block pool: block {} counts {} references, {} hold it", b, refs_[b], references[b]));
    }
    if (listed[b] != (refs_[b] == 0)) {
      return fail(ErrorKind::kInternal, fmt::format("block pool: block {} with {} references is {} the free list", b,
                                                    refs_[b], listed[b] ? "in" : "not in"));
    }
  }
  return index_.integrity();
}

}  // namespace quire::cache
