// A BlockPool hands out the blocks of one KV cache allocation, by id, and remembers what they hold.
//
// Every block is in exactly one state: null (block 0, never handed out), free, or held by one or more requests
// (reference count >= 1). A free block may still be *published*: its content is found through the prefix index until
// the block is handed out again. A published block may be *demoted*: it is findable like others, but worth less.
//
// Free blocks are handed out in this order: those that are not published, the last released first (at start by id);
// the demoted, the first released first; all other published ones, likewise.
//
// Only the engine thread calls it. integrity() walks everything and is called after each step in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/prefix_index.h"
#include "quire/error.h"

namespace quire::cache {

// What the blocks of one KV cache group are doing.
struct GroupBlocks {
  int64_t held = 0;       // by requests and pending copies
  int64_t retained = 0;   // published, and held by nobody
  int64_t evictions = 0;  // published blocks handed out again, since the start
};

class BlockPool {
 public:
  // `total` >= 1 blocks, the null block included, for `num_groups` KV cache groups.
  explicit BlockPool(int64_t total, int64_t num_groups = 1);

  int64_t total() const { return static_cast<int64_t>(refs_.size()); }
  int64_t free_count() const { return free_count_; }
  // Held blocks over all but the null block, 0..1.
  double usage() const;
  int ref_count(BlockId block) const { return refs_[slot(block)]; }
  bool is_free(BlockId block) const { return block != kNullBlock && refs_[slot(block)] == 0; }

  // Appends `count` blocks at reference count 1 to `out`: they are `group`'s until handed out again. What they
  // published is forgotten, after a call of `evicted` (if given) for each such block. kExhausted, with nothing taken,
  // if fewer are free.
  Result<void> take(int64_t count, GroupId group, std::vector<BlockId>& out,
                    const std::function<void(BlockId)>& evicted = {});

  // One more reference for each block; a free one leaves the free list. None is demoted any more: it proved useful.
  // Null blocks are passed over.
  void hold(std::span<const BlockId> blocks);

  // One reference less for each block. Those that become free keep their order: the first is handed out first among
  // those that go to the front, and among those that go to the back. Null blocks are passed over.
  void release(std::span<const BlockId> blocks);

  // Forgets what the block published. A free block then is the first to be handed out.
  void discard(BlockId block);
  // Forgets what all blocks published; none is demoted any more.
  void forget_all();

  // Nothing happens to a block that is not published, or that is settled.
  void demote(BlockId block);
  // A request took the block over from the prefix cache. Twice, and the block is settled: several requests share it.
  void count_reuse(BlockId block);
  // Until it is handed out again the block is not demoted, even if it was.
  void settle(BlockId block);
  bool is_demoted(BlockId block) const { return demoted_[slot(block)]; }

  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }

  // Published blocks handed out again since the start, of all groups.
  int64_t evictions() const;
  const GroupBlocks& of_group(GroupId group) const { return groups_[static_cast<size_t>(group.value)]; }

  // The free blocks in the order they would be handed out.
  std::vector<BlockId> free_list() const;

  // `references` says how often each block is held by those who hold blocks (index = block id). kInternal, naming the
  // block, if a count differs, a block is neither free nor held, a free list is broken, or the index is.
  Result<void> integrity(std::span<const int> references) const;

 private:
  static constexpr uint8_t kSettled = 2;

  struct Link {
    int32_t previous = 0;
    int32_t next = 0;
  };

  static size_t slot(BlockId block) { return static_cast<size_t>(block.value); }
  GroupBlocks& group_of(BlockId block) { return groups_[static_cast<size_t>(owners_[slot(block)].value)]; }
  int32_t kept() const { return static_cast<int32_t>(total()); }
  void link_last(BlockId block);
  Result<void> check_list(int32_t root, std::vector<bool>& listed) const;
  Result<void> check_groups() const;
  void link_between(BlockId block, int32_t previous, int32_t next);
  void unlink(BlockId block);

  std::vector<int> refs_;        // the null block's is always 0
  std::vector<GroupId> owners_;  // the group that a block was last handed out for
  std::vector<bool> demoted_;
  std::vector<uint8_t> reuses_;  // since the block was handed out, up to kSettled
  // Two rings of free blocks: through the null block the unpublished ones, then the demoted; through kept(), which is
  // no block, all others.
  std::vector<Link> links_;
  int64_t free_count_ = 0;
  std::vector<GroupBlocks> groups_;
  PrefixIndex index_;
};

}  // namespace quire::cache
