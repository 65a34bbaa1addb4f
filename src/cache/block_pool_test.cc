#include "cache/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

namespace quire::cache {
namespace {

std::vector<BlockId> ids(std::initializer_list<int32_t> values) {
  std::vector<BlockId> blocks;
  for (const int32_t v : values) blocks.emplace_back(v);
  return blocks;
}

std::vector<BlockId> taken(BlockPool& pool, int64_t count) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.take(count, GroupId{0}, blocks));
  return blocks;
}

PrefixIndex::Key key(uint64_t value, int32_t group = 0) {
  PrefixIndex::Key k{.hash = {}, .group = GroupId{group}};
  std::memcpy(k.hash.data(), &value, sizeof value);
  return k;
}

TEST(BlockPool, HandsOutByIdAndNeverTheNullBlock) {
  BlockPool pool(5);
  EXPECT_EQ(pool.free_count(), 4);
  EXPECT_EQ(taken(pool, 4), ids({1, 2, 3, 4}));
  EXPECT_EQ(pool.usage(), 1.0);
}

TEST(BlockPool, RefusesWithNothingTaken) {
  BlockPool pool(4);
  std::vector<BlockId> blocks;
  const auto result = pool.take(4, GroupId{0}, blocks);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kExhausted);
  EXPECT_TRUE(blocks.empty());
  EXPECT_EQ(pool.free_list(), ids({1, 2, 3}));
}

TEST(BlockPool, PutsUnpublishedBlocksFirstAndPublishedLast) {
  BlockPool pool(8);
  taken(pool, 5);
  pool.index().insert(key(2), BlockId{2}, 16);
  pool.index().insert(key(4), BlockId{4}, 16);
  pool.release(ids({5, 4, 3, 2, 1}));
  EXPECT_EQ(pool.free_list(), ids({5, 3, 1, 6, 7, 4, 2}));
}

TEST(BlockPool, KeepsContentUntilTheBlockIsHandedOutAgain) {
  BlockPool pool(3);
  taken(pool, 2);
  pool.index().insert(key(9), BlockId{1}, 16);
  pool.release(ids({2, 1}));
  EXPECT_EQ(pool.index().find(key(9)), BlockId{1});
  std::vector<BlockId> evicted;
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.take(2, GroupId{0}, blocks, [&](BlockId block) {
    EXPECT_TRUE(pool.index().is_published(block));
    evicted.push_back(block);
  }));
  EXPECT_EQ(blocks, ids({2, 1}));
  EXPECT_EQ(evicted, ids({1}));
  EXPECT_EQ(pool.index().find(key(9)), kNullBlock);
  EXPECT_EQ(pool.of_group(GroupId{0}).evictions, 1);
}

TEST(BlockPool, AHeldBlockIsNotHandedOut) {
  BlockPool pool(3);
  taken(pool, 1);
  pool.index().insert(key(1), BlockId{1}, 16);
  pool.release(ids({1}));
  pool.hold(ids({0, 1}));
  pool.hold(ids({1}));
  EXPECT_EQ(pool.ref_count(BlockId{1}), 2);
  EXPECT_EQ(pool.ref_count(kNullBlock), 0);
  EXPECT_EQ(taken(pool, 1), ids({2}));
  pool.release(ids({1, 0}));
  EXPECT_FALSE(pool.is_free(BlockId{1}));
  pool.release(ids({1}));
  EXPECT_TRUE(pool.is_free(BlockId{1}));
}

TEST(BlockPool, HandsOutDiscardedBlocksFirst) {
  BlockPool pool(5);
  taken(pool, 3);
  for (const int32_t b : {1, 2, 3}) pool.index().insert(key(static_cast<uint64_t>(b)), BlockId{b}, 16);
  pool.release(ids({2, 1}));
  pool.discard(BlockId{1});
  pool.discard(BlockId{3});  // held: only forgotten
  EXPECT_EQ(pool.free_list(), ids({1, 4, 2}));
  EXPECT_EQ(pool.index().find(key(1)), kNullBlock);
  EXPECT_EQ(pool.index().find(key(3)), kNullBlock);
  EXPECT_EQ(pool.index().find(key(2)), BlockId{2});
  EXPECT_TRUE(pool.integrity(std::vector<int>{0, 0, 0, 1, 0}));
}

TEST(BlockPool, HandsOutDemotedBlocksBeforeOtherPublishedOnes) {
  BlockPool pool(8);
  taken(pool, 6);
  for (const int32_t b : {1, 2, 3, 4, 5}) pool.index().insert(key(static_cast<uint64_t>(b)), BlockId{b}, 16);
  pool.demote(BlockId{4});  // held: its rank shows when it is free
  pool.release(ids({1, 2, 3, 4, 5, 6}));
  pool.demote(BlockId{2});
  pool.demote(BlockId{6});  // not published: nothing to demote
  EXPECT_EQ(pool.free_list(), ids({6, 7, 4, 2, 1, 3, 5}));
  EXPECT_EQ(pool.index().find(key(2)), BlockId{2});  // findable all the same
  pool.hold(ids({2}));
  pool.release(ids({2}));
  EXPECT_EQ(pool.free_list(), ids({6, 7, 4, 1, 3, 5, 2}));  // it was of use: no longer demoted
  EXPECT_EQ(taken(pool, 3), ids({6, 7, 4}));
  EXPECT_FALSE(pool.is_demoted(BlockId{4}));
  pool.forget_all();
  EXPECT_EQ(pool.free_list(), ids({1, 3, 5, 2}));
}

TEST(BlockPool, NeverDemotesSettledBlocks) {
  BlockPool pool(6);
  taken(pool, 4);
  for (const int32_t b : {1, 2, 3, 4}) pool.index().insert(key(static_cast<uint64_t>(b)), BlockId{b}, 16);
  pool.release(ids({1, 2, 3, 4}));
  pool.count_reuse(BlockId{1});
  pool.count_reuse(BlockId{2});
  pool.count_reuse(BlockId{2});
  for (const int32_t b : {1, 2, 3}) pool.demote(BlockId{b});
  EXPECT_EQ(pool.free_list(), ids({5, 1, 3, 2, 4}));
  pool.settle(BlockId{3});  // it was demoted: that is over
  EXPECT_EQ(pool.free_list(), ids({5, 1, 2, 4, 3}));
  pool.demote(BlockId{3});
  EXPECT_FALSE(pool.is_demoted(BlockId{3}));
  EXPECT_EQ(taken(pool, 3), ids({5, 1, 2}));
  pool.index().insert(key(2), BlockId{2}, 16);
  pool.release(ids({2}));
  pool.demote(BlockId{2});  // handed out again, it is as new
  EXPECT_TRUE(pool.is_demoted(BlockId{2}));
}

TEST(BlockPool, CountsWhatEachGroupHoldsAndRetains) {
  BlockPool pool(6, 2);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.take(2, GroupId{0}, blocks));
  ASSERT_TRUE(pool.take(2, GroupId{1}, blocks));
  pool.index().insert(key(1, 1), BlockId{3}, 16);
  pool.index().insert(key(2, 1), BlockId{4}, 16);
  pool.hold(ids({3}));
  EXPECT_EQ(pool.of_group(GroupId{0}).held, 2);
  EXPECT_EQ(pool.of_group(GroupId{1}).held, 2);
  pool.release(ids({1, 2, 3, 4}));
  EXPECT_EQ(pool.of_group(GroupId{0}).held, 0);
  EXPECT_EQ(pool.of_group(GroupId{0}).retained, 0);  // not published
  EXPECT_EQ(pool.of_group(GroupId{1}).held, 1);      // 3, of which one reference is left
  EXPECT_EQ(pool.of_group(GroupId{1}).retained, 1);
  ASSERT_TRUE(pool.take(4, GroupId{0}, blocks));  // 4 changes hands
  EXPECT_EQ(pool.of_group(GroupId{0}).held, 4);
  EXPECT_EQ(pool.of_group(GroupId{0}).evictions, 0);
  EXPECT_EQ(pool.of_group(GroupId{1}).retained, 0);
  EXPECT_EQ(pool.of_group(GroupId{1}).evictions, 1);
  EXPECT_EQ(pool.evictions(), 1);
}

TEST(BlockPool, IntegrityNamesTheBlock) {
  BlockPool pool(3);
  taken(pool, 1);
  EXPECT_TRUE(pool.integrity(std::vector<int>{0, 1, 0}));
  const auto leaked = pool.integrity(std::vector<int>{0, 0, 0});
  ASSERT_FALSE(leaked);
  EXPECT_NE(leaked.error().message.find("block 1"), std::string::npos);
  EXPECT_FALSE(pool.integrity(std::vector<int>{1, 1, 0}));
}

TEST(PrefixIndex, FindsTheFirstOfDuplicatesUntilItIsForgotten) {
  PrefixIndex index(8);
  index.insert(key(1), BlockId{3}, 16);
  index.insert(key(1), BlockId{2}, 16);
  index.insert(key(1), BlockId{3}, 16);
  EXPECT_EQ(index.size(), 2);
  EXPECT_EQ(index.find(key(1)), BlockId{3});
  EXPECT_EQ(index.find(key(1, 1)), kNullBlock);
  EXPECT_EQ(index.forget(BlockId{3}), 1);
  EXPECT_EQ(index.find(key(1)), BlockId{2});
  EXPECT_EQ(index.forget(BlockId{3}), 0);
}

TEST(PrefixIndex, ABlockMayHaveSeveralKeys) {
  PrefixIndex index(8);
  index.insert(key(1), BlockId{3}, 8);
  index.insert(key(2), BlockId{3}, 16);
  EXPECT_EQ(index.published_tokens(BlockId{3}), 16);
  index.move(BlockId{3}, BlockId{4});
  EXPECT_EQ(index.find(key(1)), BlockId{4});
  EXPECT_EQ(index.find(key(2)), BlockId{4});
  EXPECT_FALSE(index.is_published(BlockId{3}));
  EXPECT_TRUE(index.integrity());
  EXPECT_EQ(index.forget(BlockId{4}), 2);
  EXPECT_EQ(index.find(key(1)), kNullBlock);
  index.insert(key(5), BlockId{1}, 8);
  index.clear();
  EXPECT_EQ(index.find(key(5)), kNullBlock);
  EXPECT_EQ(index.size(), 0);
}

// The pool by its definition: a list for each rank, a count per block, and the keys in the order of publishing.
struct Model {
  std::deque<int32_t> free;     // not published
  std::deque<int32_t> demoted;  // published, and free like `kept`
  std::deque<int32_t> kept;
  std::set<int32_t> low;  // demoted, free or not
  std::vector<int> refs;
  std::vector<std::pair<uint64_t, int32_t>> published;

  bool is_published(int32_t b) const {
    return std::ranges::any_of(published, [&](const auto& p) { return p.second == b; });
  }
  int32_t find(uint64_t k) const {
    const auto found = std::ranges::find(published, k, &std::pair<uint64_t, int32_t>::first);
    return found == published.end() ? 0 : found->second;
  }
  void release(const std::vector<BlockId>& blocks) {
    std::vector<int32_t> front;
    for (const BlockId b : blocks) {
      if (--refs[static_cast<size_t>(b.value)] > 0) continue;
      if (!is_published(b.value)) {
        front.push_back(b.value);
      } else {
        (low.contains(b.value) ? demoted : kept).push_back(b.value);
      }
    }
    free.insert(free.begin(), front.begin(), front.end());
  }
  std::vector<BlockId> free_list() const {
    std::vector<BlockId> all;
    for (const auto* list : {&free, &demoted, &kept}) {
      for (const int32_t b : *list) all.emplace_back(b);
    }
    return all;
  }
  void unlist(int32_t b) {
    for (auto* list : {&free, &demoted, &kept}) std::erase(*list, b);
  }
};

TEST(BlockPool, BehavesAsItsDefinitionUnderRandomOperations) {
  EXPECT_TRUE(rc::check([] {
    const int32_t total = *rc::gen::inRange(1, 12);
    BlockPool pool(total);
    Model model;
    model.refs.assign(static_cast<size_t>(total), 0);
    for (int32_t b = 1; b < total; ++b) model.free.push_back(b);
    std::vector<BlockId> held;  // one entry a reference
    const int operations = *rc::gen::inRange(0, 60);
    for (int i = 0; i < operations; ++i) {
      switch (*rc::gen::inRange(0, 5)) {
        case 0: {
          const auto count = *rc::gen::inRange<size_t>(0, 4);
          std::vector<BlockId> blocks;
          const bool fits = count <= model.free_list().size();
          RC_ASSERT(pool.take(static_cast<int64_t>(count), GroupId{0}, blocks).has_value() == fits);
          for (const BlockId b : blocks) {
            RC_ASSERT(b == model.free_list().front());
            model.unlist(b.value);
            model.low.erase(b.value);
            model.refs[static_cast<size_t>(b.value)] = 1;
            std::erase_if(model.published, [&](const auto& p) { return p.second == b.value; });
            held.push_back(b);
          }
          break;
        }
        case 1: {
          const auto count = *rc::gen::inRange<size_t>(0, held.size() + 1);
          const std::vector<BlockId> blocks(held.end() - static_cast<std::ptrdiff_t>(count), held.end());
          held.resize(held.size() - count);
          pool.release(blocks);
          model.release(blocks);
          break;
        }
        case 2: {  // publish a held block
          if (held.empty()) break;
          const BlockId block = held[*rc::gen::inRange<size_t>(0, held.size())];
          const auto k = *rc::gen::inRange<uint64_t>(0, 5);
          pool.index().insert(key(k), block, 16);
          const std::pair<uint64_t, int32_t> entry{k, block.value};
          if (std::ranges::find(model.published, entry) == model.published.end()) model.published.push_back(entry);
          break;
        }
        case 3: {  // hit
          const auto k = *rc::gen::inRange<uint64_t>(0, 5);
          const BlockId block = pool.index().find(key(k));
          RC_ASSERT(block.value == model.find(k));
          if (block == kNullBlock) break;
          pool.hold({&block, 1});
          if (model.refs[static_cast<size_t>(block.value)]++ == 0) model.unlist(block.value);
          model.low.erase(block.value);
          held.push_back(block);
          break;
        }
        case 4: {
          const auto block = *rc::gen::inRange<int32_t>(0, total);
          pool.demote(BlockId{block});
          if (!model.is_published(block) || !model.low.insert(block).second) break;
          if (model.refs[static_cast<size_t>(block)] > 0) break;
          model.unlist(block);
          model.demoted.push_back(block);
          break;
        }
      }
      const auto ok = pool.integrity(model.refs);
      RC_ASSERT(ok.has_value());
      RC_ASSERT(pool.free_list() == model.free_list());
      RC_ASSERT(pool.index().size() == static_cast<int64_t>(model.published.size()));
    }
  }));
}

}  // namespace
}  // namespace quire::cache
