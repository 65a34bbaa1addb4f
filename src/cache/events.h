// What the prefix cache tells those who follow it (routers, tiers): which prefixes became findable and which are gone.
//
// Events are values. They come in the order of the changes, on the engine thread, while the change is being made: a
// subscriber only takes them down. Whoever replays all of them knows the index.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "cache/block_hash.h"

namespace quire::cache {

// Consecutive blocks of one request became findable, or one boundary inside a block (then block_size is its length in
// the block).
struct StoredEvent {
  GroupId group;
  std::vector<BlockHash> hashes = {};                  // one a block
  std::optional<BlockHash> parent = {};                // the hash before the first; none at the start of a prompt
  std::vector<TokenId> tokens = {};                    // of all blocks
  int64_t block_size = 0;                              // tokens of one block
  std::string adapter = {};                            // its name; empty: none
  std::vector<std::vector<EventKey>> extra_keys = {};  // one list a block
  std::string_view spec_kind = {};                     // name_of(CacheSpec)
  int64_t window = 0;                                  // of a window group; else 0
  std::string_view medium = "CPU";
};

// The block that was found under these keys holds something else now. Other blocks may still be found under them.
struct RemovedEvent {
  GroupId group;
  std::vector<BlockHash> hashes;
  std::string_view medium = "CPU";
};

// Nothing is findable any more.
struct AllClearedEvent {};

using CacheEvent = std::variant<StoredEvent, RemovedEvent, AllClearedEvent>;
using EventSubscriber = std::function<void(const CacheEvent&)>;

}  // namespace quire::cache
