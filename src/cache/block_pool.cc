#include "cache/block_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace quire::cache {

BlockPool::BlockPool(int64_t total, int64_t num_groups) : index_(total) {
  QUIRE_CHECK(total >= 1 && total <= INT32_MAX);
  const auto blocks = static_cast<size_t>(total);
  refs_.assign(blocks, 0);
  owners_.assign(blocks, GroupId{0});
  demoted_.assign(blocks, false);
  reuses_.assign(blocks, 0);
  groups_.resize(static_cast<size_t>(std::max<int64_t>(num_groups, 1)));
  links_.resize(blocks + 1);
  const auto last = static_cast<int32_t>(total - 1);
  for (int32_t b = 0; b <= last; ++b) links_[static_cast<size_t>(b)] = {b == 0 ? last : b - 1, b == last ? 0 : b + 1};
  links_[blocks] = {kept(), kept()};
  free_count_ = total - 1;
}

double BlockPool::usage() const {
  const int64_t usable = total() - 1;
  return usable == 0 ? 0.0 : static_cast<double>(usable - free_count_) / static_cast<double>(usable);
}

int64_t BlockPool::evictions() const {
  int64_t total = 0;
  for (const GroupBlocks& group : groups_) total += group.evictions;
  return total;
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

Result<void> BlockPool::take(int64_t count, GroupId group, std::vector<BlockId>& out,
                             const std::function<void(BlockId)>& evicted) {
  if (count > free_count_) {
    return fail(ErrorKind::kExhausted,
                fmt::format("the KV cache has {} free blocks, {} are needed", free_count_, count));
  }
  for (; count > 0; --count) {
    const int32_t first = links_[0].next;
    const BlockId block{first != 0 ? first : links_[static_cast<size_t>(kept())].next};
    unlink(block);
    if (index_.is_published(block)) {
      if (evicted) evicted(block);
      index_.forget(block);
      --group_of(block).retained;
      ++group_of(block).evictions;
    }
    demoted_[slot(block)] = false;
    reuses_[slot(block)] = 0;
    refs_[slot(block)] = 1;
    owners_[slot(block)] = group;
    ++group_of(block).held;
    out.push_back(block);
  }
  return {};
}

void BlockPool::hold(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    demoted_[slot(block)] = false;
    if (refs_[slot(block)]++ > 0) continue;
    unlink(block);
    ++group_of(block).held;
    if (index_.is_published(block)) --group_of(block).retained;
  }
}

void BlockPool::release(std::span<const BlockId> blocks) {
  int32_t front = 0;  // the last block put to the front
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    QUIRE_CHECK(refs_[slot(block)] > 0);
    if (--refs_[slot(block)] > 0) continue;
    --group_of(block).held;
    if (index_.is_published(block)) {
      ++group_of(block).retained;
      link_last(block);
    } else {
      link_between(block, front, links_[static_cast<size_t>(front)].next);
      front = block.value;
    }
  }
}

// A published block goes behind those of its rank.
void BlockPool::link_last(BlockId block) {
  const int32_t root = demoted_[slot(block)] ? 0 : kept();
  link_between(block, links_[static_cast<size_t>(root)].previous, root);
}

void BlockPool::discard(BlockId block) {
  const bool retained = is_free(block) && index_.is_published(block);
  index_.forget(block);
  demoted_[slot(block)] = false;
  if (retained) --group_of(block).retained;
  if (!is_free(block)) return;
  unlink(block);
  link_between(block, 0, links_[0].next);
}

void BlockPool::forget_all() {
  index_.clear();
  demoted_.assign(demoted_.size(), false);
  for (GroupBlocks& group : groups_) group.retained = 0;
}

void BlockPool::demote(BlockId block) {
  if (!index_.is_published(block) || demoted_[slot(block)] || reuses_[slot(block)] >= kSettled) return;
  demoted_[slot(block)] = true;
  if (!is_free(block)) return;
  unlink(block);
  link_last(block);
}

void BlockPool::count_reuse(BlockId block) {
  if (block != kNullBlock && reuses_[slot(block)] < kSettled) ++reuses_[slot(block)];
}

void BlockPool::settle(BlockId block) {
  reuses_[slot(block)] = kSettled;
  if (!demoted_[slot(block)]) return;
  demoted_[slot(block)] = false;
  if (!is_free(block)) return;
  unlink(block);
  link_last(block);
}

std::vector<BlockId> BlockPool::free_list() const {
  std::vector<BlockId> blocks;
  for (const int32_t root : {0, kept()}) {
    for (int32_t b = links_[static_cast<size_t>(root)].next; b != root; b = links_[static_cast<size_t>(b)].next) {
      blocks.emplace_back(b);
    }
  }
  return blocks;
}

Result<void> BlockPool::integrity(std::span<const int> references) const {
  QUIRE_CHECK(references.size() == refs_.size());
  std::vector<bool> listed(refs_.size(), false);
  for (const int32_t root : {0, kept()}) {
    if (auto sound = check_list(root, listed); !sound) return sound;
  }
  if (const auto count = std::ranges::count(listed, true); count != free_count_) {
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
      return fail(ErrorKind::kInternal, fmt::format("block pool: block {} with {} references is {} a free list", b,
                                                    refs_[b], listed[b] ? "in" : "not in"));
    }
  }
  if (auto sound = check_groups(); !sound) return sound;
  return index_.integrity();
}

Result<void> BlockPool::check_list(int32_t root, std::vector<bool>& listed) const {
  for (int32_t b = links_[static_cast<size_t>(root)].next; b != root; b = links_[static_cast<size_t>(b)].next) {
    if (b <= 0 || b >= kept() || listed[static_cast<size_t>(b)]) {
      return fail(ErrorKind::kInternal, fmt::format("block pool: the free lists meet again at block {}", b));
    }
    if (links_[static_cast<size_t>(links_[static_cast<size_t>(b)].next)].previous != b) {
      return fail(ErrorKind::kInternal, fmt::format("block pool: a free list is broken after block {}", b));
    }
    listed[static_cast<size_t>(b)] = true;
  }
  return {};
}

Result<void> BlockPool::check_groups() const {
  std::vector<GroupBlocks> counted(groups_.size());
  for (size_t b = 1; b < refs_.size(); ++b) {
    GroupBlocks& group = counted[static_cast<size_t>(owners_[b].value)];
    if (refs_[b] > 0) ++group.held;
    if (refs_[b] == 0 && index_.is_published(BlockId{static_cast<int32_t>(b)})) ++group.retained;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (counted[g].held == groups_[g].held && counted[g].retained == groups_[g].retained) continue;
    return fail(ErrorKind::kInternal,
                fmt::format("block pool: group {} holds {} blocks and retains {}, counted are {} and {}", g,
                            counted[g].held, counted[g].retained, groups_[g].held, groups_[g].retained));
  }
  return {};
}

}  // namespace quire::cache
