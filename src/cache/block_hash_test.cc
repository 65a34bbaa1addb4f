#include "cache/block_hash.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "support/cache_vectors.h"

namespace quire::cache {
namespace {

using nlohmann::json;

Sha256Digest digest_of(const std::string& text) { return sha256(std::as_bytes(std::span(text))); }

HashKeys keys_of(const json& c) {
  HashKeys keys;
  if (!c.at("lora").is_null()) {
    const std::string name = c["lora"].at("name");
    keys.adapter = AdapterKey{name, digest_of(c["lora"].at("path"))};
  }
  for (const auto& item : c.at("mm_features")) {
    keys.media.push_back({item.at("identifier"), item.at("offset"), item.at("length")});
  }
  if (!c.at("cache_salt").is_null()) keys.cache_salt = c["cache_salt"];
  return keys;
}

// Our keys in the notation of the vectors. An adapter's digest stands for its name and path.
json in_vector_notation(const HashKeys& keys, const json& c, std::span<const ExtraKey> found) {
  if (found.empty()) return nullptr;
  json list = json::array();
  for (const auto& key : found) {
    const std::string identity(key.identity);
    switch (key.domain) {
      case ExtraKey::Domain::kAdapter:
        EXPECT_EQ(std::memcmp(identity.data(), keys.adapter->digest.data(), 32), 0);
        list.push_back({"lora", c["lora"]["name"], c["lora"]["path"]});
        break;
      case ExtraKey::Domain::kMedia:
        list.push_back({"mm", identity, key.offset});
        break;
      case ExtraKey::Domain::kCacheSalt:
        list.push_back({"cache_salt", identity});
        break;
    }
  }
  return list;
}

// What events carry: the adapter's name, [item, offset], the salt; null if no block has keys.
json in_event_notation(const HashKeys& keys, int64_t num_blocks, int64_t block) {
  json list = json::array();
  bool any = false;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const auto event = event_keys(keys, b * block, (b + 1) * block);
    json of_block = json::array();
    for (const auto& key : event) {
      key.offset ? of_block.push_back({key.text, *key.offset}) : of_block.push_back(key.text);
    }
    any |= !event.empty();
    list.push_back(event.empty() ? json(nullptr) : of_block);
  }
  return any ? list : json(nullptr);
}

TEST(CacheVectors, HashKeys) {
  const json file = load_vectors("hash_keys.json");
  size_t run = 0;
  for (const auto& c : file.at("cases")) {
    SCOPED_TRACE("case " + std::to_string(run++));
    const HashKeys keys = keys_of(c);
    const int64_t block = c.at("hash_block_size");
    const int64_t num_blocks = int64_t{c.at("num_tokens")} / block;
    json plain = json::array();
    json ahead = json::array();
    for (int64_t b = 0; b < num_blocks; ++b) {
      plain.push_back(in_vector_notation(keys, c, extra_keys(keys, b * block, (b + 1) * block)));
      ahead.push_back(in_vector_notation(keys, c, extra_keys(keys, b * block, (b + 1) * block, c.at("lookahead"))));
    }
    const json& expected = c.at("expected");
    EXPECT_EQ(plain, expected.at("extra_keys_per_block"));
    EXPECT_EQ(ahead, expected.at("lookahead_extra_keys_per_block"));
    EXPECT_EQ(in_event_notation(keys, num_blocks, block), expected.at("event_extra_keys"));
  }
  if (!uses_own_vectors()) return;
  EXPECT_EQ(run, 21U);
}

std::vector<BlockHash> hashes_of(const HashScheme& scheme, const HashKeys& keys, const std::vector<TokenId>& tokens) {
  std::vector<BlockHash> hashes;
  extend_hashes(scheme, keys, tokens, hashes);
  return hashes;
}

// Written out by hand, from the definition in the header.
TEST(BlockHash, IsTheDefinition) {
  const HashScheme scheme{.root = digest_of("root"), .block_size = 2};
  const HashKeys keys{.cache_salt = "s"};
  const auto hashes = hashes_of(scheme, keys, {7, 258, -1, 4, 5});
  ASSERT_EQ(hashes.size(), 2U);
  const auto bytes = [](const BlockHash& parent, std::string_view rest) {
    std::string all(reinterpret_cast<const char*>(parent.data()), parent.size());
    return digest_of(all.append(rest));
  };
  using namespace std::string_view_literals;
  const BlockHash first = bytes(scheme.root,
                                "\2\0\0\0"
                                "\7\0\0\0\2\1\0\0"
                                "\3\1\0\0\0\0\0\0\0s\0\0\0\0\0\0\0\0"sv);
  EXPECT_EQ(hashes[0], first);
  EXPECT_EQ(hashes[1], bytes(first, "\2\0\0\0\xff\xff\xff\xff\4\0\0\0"sv));
}

TEST(BlockHash, GrowsWithItsTokensAsIfHashedAtOnce) {
  EXPECT_TRUE(rc::check([] {
    const auto tokens = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange(0, 4));
    const HashScheme scheme{.block_size = *rc::gen::inRange(1, 6), .lookahead = *rc::gen::inRange(0, 4)};
    const HashKeys keys{.media = {{"img", 3, 5}}, .cache_salt = "salt"};
    std::vector<BlockHash> grown;
    for (size_t n = 0; n <= tokens.size(); n += static_cast<size_t>(*rc::gen::inRange(1, 5))) {
      extend_hashes(scheme, keys, std::span(tokens).first(n), grown);
      RC_ASSERT(static_cast<int64_t>(grown.size()) == scheme.num_blocks(static_cast<int64_t>(n)));
    }
    extend_hashes(scheme, keys, tokens, grown);
    RC_ASSERT(grown == hashes_of(scheme, keys, tokens));
  }));
}

TEST(BlockHash, CoversTheTokensThatADrafterReadsAhead) {
  const HashScheme scheme{.block_size = 4, .lookahead = 2};
  EXPECT_TRUE(hashes_of(scheme, {}, {1, 2, 3, 4, 5}).empty());
  const auto a = hashes_of(scheme, {}, {1, 2, 3, 4, 5, 6});
  const auto b = hashes_of(scheme, {}, {1, 2, 3, 4, 5, 7});
  ASSERT_EQ(a.size(), 1U);
  EXPECT_NE(a, b);
}

// cache.md, faults seen elsewhere: an adapter whose name equals a salt.
TEST(CacheFaults, AdapterEqualToASaltDoesNotCollide) {
  const std::string same = "tenant";
  HashKeys adapter{.adapter = AdapterKey{same, digest_of(same)}};
  HashKeys salt{.cache_salt = std::string(reinterpret_cast<const char*>(adapter.adapter->digest.data()), 32)};
  HashKeys media{.media = {{salt.cache_salt, 0, 4}}};
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const HashScheme scheme{.block_size = 4};
  std::set<BlockHash> distinct = {hashes_of(scheme, adapter, tokens)[0], hashes_of(scheme, salt, tokens)[0],
                                  hashes_of(scheme, media, tokens)[0], hashes_of(scheme, {}, tokens)[0]};
  EXPECT_EQ(distinct.size(), 4U);
}

TEST(BlockHash, AReloadedAdapterOrAnotherModelNeverHits) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const HashScheme scheme{.block_size = 4};
  const HashKeys before{.adapter = AdapterKey{"a", digest_of("bytes")}};
  const HashKeys after{.adapter = AdapterKey{"a", digest_of("other bytes")}};
  EXPECT_NE(hashes_of(scheme, before, tokens), hashes_of(scheme, after, tokens));
  const HashScheme other{.root = digest_of("another model"), .block_size = 4};
  EXPECT_NE(hashes_of(scheme, {}, tokens), hashes_of(other, {}, tokens));
}

}  // namespace
}  // namespace quire::cache
