// What names a cached block: a digest of everything that decides its content.
//
//   hash_i = SHA-256(hash_{i-1} or root | number of tokens | tokens of block i | extra keys of block i)
//
// The root stands for the model: weights, numeric profile and page layout. Extra keys say what tokens alone do not:
// the adapter, the media items that fill placeholder tokens, and (first block only) the request's cache salt. Each is
// tagged with its domain, so that equal strings of two domains never collide. The digest is the identity of a block:
// tokens are not compared again.
//
// Blocks here are *hash blocks*, the finest unit of any group. The hash of a coarser block is the hash of the last hash
// block in it. A drafter whose layers read `lookahead` tokens past a position makes a block's content depend on them:
// then a hash covers that many more tokens, and exists once they do.
//
// Plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "quire/request.h"

namespace quire::cache {

using BlockHash = Sha256Digest;

struct AdapterKey {
  std::string name;       // for people and events
  Sha256Digest digest{};  // of the adapter's bytes: this alone enters the hash
};

// A media item whose embeddings stand at tokens [offset, offset + length).
struct MediaKey {
  std::string identifier;
  int64_t offset = 0;
  int64_t length = 0;
};

struct HashKeys {
  std::optional<AdapterKey> adapter = {};
  std::vector<MediaKey> media = {};  // in order of offset
  std::string cache_salt = {};       // empty: none
};

struct ExtraKey {
  enum class Domain : uint8_t { kAdapter = 1, kMedia = 2, kCacheSalt = 3 };
  Domain domain;
  std::string_view identity;  // the adapter's digest, the item's identifier, the salt; points into the HashKeys
  int64_t offset = 0;         // kMedia: the item's offset minus the block's start, may be negative
};

// The extra keys of the block [start, end), in the order adapter, media, salt. A block that is hashed with lookahead
// takes the media items that its `lookahead` further tokens touch, too.
std::vector<ExtraKey> extra_keys(const HashKeys& keys, int64_t start, int64_t end, int64_t lookahead = 0);

// The same keys as events tell them to others: an adapter by its name, an item with its offset, a salt as it is.
struct EventKey {
  std::string text;
  std::optional<int64_t> offset = {};
};
std::vector<EventKey> event_keys(const HashKeys& keys, int64_t start, int64_t end);

struct HashScheme {
  Sha256Digest root{};
  int64_t block_size = 16;  // tokens of a hash block
  int64_t lookahead = 0;    // tokens past a block's end that its hash covers

  // Hash blocks that `num_tokens` tokens allow.
  int64_t num_blocks(int64_t num_tokens) const {
    return num_tokens <= lookahead ? 0 : (num_tokens - lookahead) / block_size;
  }
};

// Appends the hashes of all blocks of `tokens` that `hashes` does not have yet.
void extend_hashes(const HashScheme& scheme, const HashKeys& keys, std::span<const TokenId> tokens,
                   std::vector<BlockHash>& hashes);

}  // namespace quire::cache
