// A CacheSpec says what one layer keeps in the KV cache: the bytes of one stored state, how many states and heads a
// block holds, and a *retention* that says which tokens stay, for how long, and how a prefix may be found again.
//
// It is a plain value. Everything the cache derives from it is a pure function below; a new kind of layer is a new
// retention with its cases here, nothing elsewhere. Bytes of a block of one layer, its *page*:
//   unpadded = heads * states_per_block * state_bytes;   page = max(padded page, unpadded)
// A block of a token cache covers `block_size` tokens; with `tokens_per_state` t > 1 one state is stored for t tokens
// (compressed keys). A circular buffer's block is its whole ring; a recurrent block is one state of the layer, and
// without checkpoints the only one of a request, whatever its block size says.
//
// All counts are tokens or bytes in int64_t. validate() bounds every field so that no function here can overflow.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "base/dtype.h"
#include "quire/error.h"

namespace quire::cache {

// Every token stays. A layer that only *masks* (a window or chunk kept whole because the hybrid cache is off) names its
// mask here; the cache ignores it.
struct FullRetention {
  int64_t mask_window = 0;  // 0: no mask
  int64_t mask_chunk = 0;
  bool operator==(const FullRetention&) const = default;
};

// The next token sees the last `window` tokens, itself included; `extra_retained` more stay for drafts that may roll
// back.
struct SlidingWindow {
  int64_t window = 0;
  int64_t extra_retained = 0;
  bool operator==(const SlidingWindow&) const = default;
};

// A token sees its own chunk of `chunk` tokens, up to itself.
struct ChunkedLocal {
  int64_t chunk = 0;
  bool operator==(const ChunkedLocal&) const = default;
};

// One block per request, a ring of block_size rows, written at position % block_size. Never found again.
struct CircularBuffer {
  bool operator==(const CircularBuffer&) const = default;
};

// One state per request, rewritten by every token. In kAlign a copy is kept at block boundaries, for prefix hits.
struct RecurrentState {
  enum class Checkpoints : uint8_t { kNone, kAlign };
  Checkpoints checkpoints = Checkpoints::kNone;
  int64_t speculative_blocks = 0;  // states held for drafted tokens
  bool operator==(const RecurrentState&) const = default;
};

// Rows of a ring from which every `pooled` tokens in a row become one state, with at most `drafts` tokens drafted a
// step: drafts that are rejected, even one that completes a pool, must not overwrite rows of committed tokens. Both are
// below 2^30; pooled is at least 1.
int64_t ring_capacity(int64_t pooled, int64_t drafts);

using Retention = std::variant<FullRetention, SlidingWindow, ChunkedLocal, CircularBuffer, RecurrentState>;

// What the bytes of a state are. It decides which specs may share a group and which pages may be padded.
enum class Storage : uint8_t {
  kHeads,        // K and V (or keys alone) for each head
  kLatent,       // one latent row shared by all heads (MLA), or one compressed key
  kState,        // a recurrent state, opaque to the cache
  kHiddenState,  // rows of the residual stream that a drafter reads
};

// What the distance between two blocks of a layer must be a multiple of.
struct StrideAlignment {
  enum class Unit : uint8_t { kBytes, kTokens };  // kTokens: the bytes of that many tokens' states
  Unit unit = Unit::kBytes;
  int64_t value = 1;
  bool operator==(const StrideAlignment&) const = default;
};

struct CacheSpec {
  Storage storage = Storage::kHeads;
  Retention retention = FullRetention{};
  DType dtype = DType::kBF16;
  int64_t block_size = 16;   // tokens; for a circular buffer its capacity
  int64_t num_kv_heads = 1;  // 1 for latent rows and recurrent states
  int64_t state_bytes = 0;   // of one state of one head, all sides (K and V, scales) together
  int64_t tokens_per_state = 1;
  StrideAlignment block_stride_alignment = {};
  int64_t padded_page_bytes = 0;         // 0: no padding; else at least the unpadded page
  bool is_draft = false;                 // a drafter's layer; never part of equality or grouping
  bool prefix_cacheable = true;          // false: blocks are never published
  bool uses_slot_mapping = true;         // false: slots are all -1, the layer finds its rows itself
  bool context_parallel_sharded = true;  // false: every context-parallel rank keeps all tokens

  // Everything but is_draft.
  bool operator==(const CacheSpec& other) const;
};

// Limits that a whole plan shares.
struct CacheLimits {
  int64_t max_in_flight_tokens = 0;  // tokens scheduled but not yet known to be processed
  int64_t context_parallel_size = 1;
};

// How a group's cached prefix may be looked up. Units are the group's blocks.
struct HitRule {
  enum class Search : uint8_t {
    kNever,
    kForward,           // from the first block on until the first miss
    kForwardFromChunk,  // as kForward, from the block of the current chunk's start; null before it
    kBackward,          // from the end back until `contiguous_blocks` in a row, null before them; else the leading run
    kBackwardSingle,    // from the end back to one block that ends at an aligned boundary, null before it
  };
  Search search = Search::kForward;
  int64_t contiguous_blocks = 0;  // for kBackward
  int64_t alignment_tokens = 1;   // a hit's length must be a multiple of this (tokens_per_state)
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// kInvalidRequest, naming the field, if a count is not positive, a size contradicts another, or a page would exceed
// 2^40 bytes.
Result<void> validate(const CacheSpec& spec);

// "full", "sliding window", "chunked local", "circular buffer" or "recurrent"; "mla ..." for latent storage.
std::string_view name_of(const CacheSpec& spec);

template <class Kind>
bool keeps(const CacheSpec& spec) {
  return std::holds_alternative<Kind>(spec.retention);
}

// Whether a request's blocks are the same from its first token to its last: a ring, or a state without checkpoints. The
// first column of its table is the block that every token reads and writes.
bool holds_fixed_blocks(const CacheSpec& spec);

// Rows of one head in a block: block_size / tokens_per_state; 1 for a recurrent state.
int64_t states_per_block(const CacheSpec& spec);
int64_t unpadded_page_bytes(const CacheSpec& spec);
int64_t page_size_bytes(const CacheSpec& spec);

// The byte multiple that the layer's block stride must be, for the spec's own (final) block size; 1 if any will do.
// For `kTokens` n: g = gcd(n, block_size); g == block_size gives 1, else the bytes of a g-token block.
int64_t resolved_stride_alignment(const CacheSpec& spec);

// Tokens that one block id covers: block_size, times the context-parallel size for sharded specs.
int64_t tokens_per_block(const CacheSpec& spec, int64_t context_parallel_size);

// How many leading tokens no later token can read once `num_processed` tokens (>= 0) are processed.
int64_t skipped_tokens(const CacheSpec& spec, int64_t num_processed);

// The most blocks that one request of `length` tokens ever holds at once: the bound both for sizing the pool and for
// admitting a request (at start with the maximum model length).
int64_t max_blocks(const CacheSpec& spec, int64_t length, const CacheLimits& limits);

// Columns that a request's block table needs for `length` tokens (null columns included).
int64_t table_columns(const CacheSpec& spec, int64_t length, const CacheLimits& limits);

HitRule hit_rule(const CacheSpec& spec, int64_t context_parallel_size);

// Whether layers of both specs may share one group and one page shape: equal but for is_draft and masks.
bool mergeable(const CacheSpec& a, const CacheSpec& b);

// Whether both retain alike over the same block size, so that one block table serves both though their pages differ.
bool same_uniform_type(const CacheSpec& a, const CacheSpec& b);

}  // namespace quire::cache
