#include "cache/block_hash.h"

#include <array>
#include <bit>
#include <cstring>

namespace quire::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are defined over little-endian integers");

std::string_view as_text(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

template <class T>
void update_value(Sha256& sha, const T& value) {
  sha.update(std::as_bytes(std::span(&value, 1)));
}

// Calls f(key) for each extra key of the block [start, end).
template <class F>
void for_each_extra_key(const HashKeys& keys, int64_t start, int64_t end, int64_t lookahead, F&& f) {
  if (keys.adapter) f(ExtraKey{ExtraKey::Domain::kAdapter, as_text(keys.adapter->digest)});
  for (const auto& item : keys.media) {
    if (item.offset < end + lookahead && item.offset + item.length > start)
      f(ExtraKey{ExtraKey::Domain::kMedia, item.identifier, item.offset - start});
  }
  if (start == 0 && !keys.cache_salt.empty()) f(ExtraKey{ExtraKey::Domain::kCacheSalt, keys.cache_salt});
}

void update_key(Sha256& sha, const ExtraKey& key) {
  update_value(sha, key.domain);
  update_value(sha, static_cast<uint64_t>(key.identity.size()));
  sha.update(std::as_bytes(std::span(key.identity)));
  update_value(sha, key.offset);
}

BlockHash hash_block(const HashScheme& scheme, const HashKeys& keys, std::span<const TokenId> tokens, int64_t start,
                     const BlockHash& parent) {
  const int64_t covered = scheme.block_size + scheme.lookahead;
  const auto block = tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(covered));
  Sha256 sha;
  sha.update(parent);
  update_value(sha, static_cast<uint32_t>(covered));
  sha.update(std::as_bytes(block));
  for_each_extra_key(keys, start, start + scheme.block_size, scheme.lookahead,
                     [&](const ExtraKey& key) { update_key(sha, key); });
  return sha.finish();
}

}  // namespace

std::vector<ExtraKey> extra_keys(const HashKeys& keys, int64_t start, int64_t end, int64_t lookahead) {
  std::vector<ExtraKey> found;
  for_each_extra_key(keys, start, end, lookahead, [&](const ExtraKey& key) { found.push_back(key); });
  return found;
}

std::vector<EventKey> event_keys(const HashKeys& keys, int64_t start, int64_t end) {
  std::vector<EventKey> found;
  for (const auto& key : extra_keys(keys, start, end)) {
    switch (key.domain) {
      case ExtraKey::Domain::kAdapter:
        found.push_back({keys.adapter->name});
        break;
      case ExtraKey::Domain::kMedia:
        found.push_back({std::string(key.identity), key.offset});
        break;
      case ExtraKey::Domain::kCacheSalt:
        found.push_back({std::string(key.identity)});
        break;
    }
  }
  return found;
}

void extend_hashes(const HashScheme& scheme, const HashKeys& keys, std::span<const TokenId> tokens,
                   std::vector<BlockHash>& hashes) {
  const auto count = static_cast<size_t>(scheme.num_blocks(static_cast<int64_t>(tokens.size())));
  while (hashes.size() < count) {
    const BlockHash parent = hashes.empty() ? scheme.root : hashes.back();
    const auto start = static_cast<int64_t>(hashes.size()) * scheme.block_size;
    hashes.push_back(hash_block(scheme, keys, tokens, start, parent));
  }
}

}  // namespace quire::cache
