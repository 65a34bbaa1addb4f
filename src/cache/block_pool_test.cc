#include "cache/block_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <deque>

namespace quire::cache {
namespace {

std::vector<BlockId> ids(std::initializer_list<int32_t> values) {
  std::vector<BlockId> blocks;
  for (const int32_t v : values) blocks.emplace_back(v);
  return blocks;
}

std::vector<BlockId> taken(BlockPool& pool, int64_t count) {
  std::vector<BlockId> blocks;
  EXPECT_TRUE(pool.take(count, blocks));
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
  const auto result = pool.take(4, blocks);
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
  EXPECT_TRUE(pool.take(2, blocks, [&](BlockId block) {
    EXPECT_TRUE(pool.index().is_published(block));
    evicted.push_back(block);
  }));
  EXPECT_EQ(blocks, ids({2, 1}));
  EXPECT_EQ(evicted, ids({1}));
  EXPECT_EQ(pool.index().find(key(9)), kNullBlock);
  EXPECT_EQ(pool.evictions(), 1);
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

// The pool by its definition: a list, a count per block, and the keys in the order of publishing.
struct Model {
  std::deque<int32_t> free;
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
      is_published(b.value) ? free.push_back(b.value) : front.push_back(b.value);
    }
    free.insert(free.begin(), front.begin(), front.end());
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
      switch (*rc::gen::inRange(0, 4)) {
        case 0: {
          const auto count = *rc::gen::inRange<size_t>(0, 4);
          std::vector<BlockId> blocks;
          const bool fits = count <= model.free.size();
          RC_ASSERT(pool.take(static_cast<int64_t>(count), blocks).has_value() == fits);
          for (const BlockId b : blocks) {
            RC_ASSERT(b.value == model.free.front());
            model.free.pop_front();
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
          if (model.refs[static_cast<size_t>(block.value)]++ == 0) std::erase(model.free, block.value);
          held.push_back(block);
          break;
        }
      }
      const auto ok = pool.integrity(model.refs);
      RC_ASSERT(ok.has_value());
      std::vector<BlockId> expected;
      for (const int32_t b : model.free) expected.emplace_back(b);
      RC_ASSERT(pool.free_list() == expected);
      RC_ASSERT(pool.index().size() == static_cast<int64_t>(model.published.size()));
    }
  }));
}

}  // namespace
}  // namespace quire::cache
