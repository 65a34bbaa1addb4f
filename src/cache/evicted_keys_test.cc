#include "cache/evicted_keys.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <deque>

namespace quire::cache {
namespace {

PrefixIndex::Key key(uint64_t value, int32_t group) {
  PrefixIndex::Key k{.hash = {}, .group = GroupId{group}};
  std::memcpy(k.hash.data(), &value, sizeof value);
  return k;
}

TEST(EvictedKeys, WithoutCapacityNothingIsKnown) {
  EvictedKeys keys(0);
  keys.add(key(1, 0), {.when = 1});
  EXPECT_FALSE(keys.find(key(1, 0)));
  EXPECT_FALSE(keys.complete());
}

TEST(EvictedKeys, ForgetsEverythingAtOnce) {
  EvictedKeys keys(2);
  keys.add(key(1, 0), {.when = 1});
  EXPECT_TRUE(keys.complete());
  keys.forget();
  EXPECT_FALSE(keys.find(key(1, 0)));
  EXPECT_FALSE(keys.complete());
  keys.add(key(1, 0), {.when = 2});
  EXPECT_EQ(keys.find(key(1, 0))->when, 2);
}

// By its definition: a list of the last evictions, searched from its end.
TEST(EvictedKeys, RemembersTheLatestAndNoMore) {
  EXPECT_TRUE(rc::check([] {
    const auto capacity = *rc::gen::inRange<size_t>(1, 9);
    EvictedKeys keys(static_cast<int64_t>(capacity));
    std::deque<std::pair<PrefixIndex::Key, Eviction>> model;
    const int evictions = *rc::gen::inRange(0, 40);
    for (int i = 0; i < evictions; ++i) {
      const auto k = key(*rc::gen::inRange<uint64_t>(0, 6), *rc::gen::inRange(0, 2));
      const Eviction eviction{.when = static_cast<double>(i), .demoted = *rc::gen::arbitrary<bool>()};
      keys.add(k, eviction);
      model.emplace_back(k, eviction);
      if (model.size() > capacity) model.pop_front();
      RC_ASSERT(keys.complete() == (static_cast<size_t>(i) < capacity));
      for (uint64_t value = 0; value < 6; ++value) {
        for (int32_t group = 0; group < 2; ++group) {
          const auto last = std::find_if(model.rbegin(), model.rend(),
                                         [&](const auto& entry) { return entry.first == key(value, group); });
          const auto found = keys.find(key(value, group));
          RC_ASSERT(found.has_value() == (last != model.rend()));
          if (!found) continue;
          RC_ASSERT(found->when == last->second.when);
          RC_ASSERT(found->demoted == last->second.demoted);
        }
      }
    }
  }));
}

}  // namespace
}  // namespace quire::cache
