// The Coordinator keeps the KV cache of all groups together: one pool, one prefix index, a row of blocks per request
// and group.
//
// A request owns a RequestCache, opaque to all others: what each group keeps for it. A prefix is hit only as far as
// *every* group hits it. Slots are given for a whole step or not at all: on refusal nothing was allocated. Only full
// blocks of tokens that are final (never drafts) are published, and only those that a later hit can ask for.
//
// Invariants, proved by integrity(): every block is null, free or held; reference counts equal the references of rows
// and pending copies; a group never holds more blocks than its bound; a published block's keys are in the index.
//
// Only the engine thread calls it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_hash.h"
#include "cache/block_pool.h"
#include "cache/events.h"
#include "cache/evicted_keys.h"
#include "cache/hit_search.h"
#include "cache/planner.h"
#include "cache/spec.h"
#include "cache/write_mask.h"
#include "quire/cache_report.h"

namespace quire::cache {

struct GroupConfig {
  CacheSpec spec;
  HitRule hit;
  bool drops_block = false;  // holds a drafter's layers: its hits drop the last block
};

struct CoordinatorConfig {
  std::vector<GroupConfig> groups = {};  // GroupId is the index
  int64_t num_blocks = 0;                // the null block included
  int64_t max_model_len = 0;             // tokens, prompt and output
  CacheLimits limits = {};
  int64_t scheduler_block = 0;    // tokens; 0: the least common multiple of the groups' blocks
  int64_t hash_block = 0;         // tokens; 0: the greatest common divisor of the cacheable groups' blocks
  int64_t lookahead_tokens = 0;   // the most that a SlotRequest asks for
  bool overlapped_steps = false;  // a step may be planned before the one before it is processed
  bool enable_caching = true;
  bool all_groups_drop_block = false;  // a drafter reads every group: as if each had drops_block
  RetentionPolicy retention = {};
  int64_t remembered_evictions = 0;  // keys of so many are kept, for report()
};

// The configuration for a plan; the caller sets what the plan does not know (lookahead, retention).
CoordinatorConfig coordinator_config(const CachePlan& plan, const CacheLimits& limits, bool enable_caching);

// What one group keeps for one request.
struct GroupState {
  std::vector<BlockId> row;       // by column; null where the block was skipped or is not needed
  int64_t published_columns = 0;  // columns before this were published or judged not worth it
  // A hit that ended inside a block: the column and the shared block to copy before the request writes there.
  std::optional<std::pair<int64_t, BlockId>> shared_tail = {};
  // Blocks published at boundaries that may turn out to be passed (RetentionPolicy::Keep::kTurnEnds), by column.
  std::vector<std::pair<int64_t, BlockId>> trail = {};
  int64_t first_kept = 0;  // columns before this are null for good
  bool has_state = false;  // recurrent checkpoints: the running state has its block
};

class RequestCache {
 public:
  // True between the first slots and release().
  bool admitted() const { return admitted_; }

 private:
  friend class Coordinator;
  std::vector<GroupState> groups_;
  bool admitted_ = false;
};

struct PrefixHit {
  int64_t length = 0;  // tokens
  // Tokens past `length` that some groups have but others do not (yet): a prefix that requests share.
  int64_t uncached_common = 0;
  std::vector<std::vector<BlockId>> rows;  // for each group
};

// What the cache must know of a request to publish its blocks.
struct RequestTokens {
  std::span<const BlockHash> hashes;
  std::span<const TokenId> tokens;  // prompt and output, no drafts: only these are final
  const HashKeys* keys = nullptr;   // as hashed; null: none
  int64_t num_prompt_tokens = 0;
  int64_t shared_boundary = 0;  // tokens; a junction of shared prefixes that sparse groups should keep; 0: none

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

struct SlotRequest {
  RequestTokens tokens;
  int64_t computed = 0;            // tokens computed before this step, without `hit`
  int64_t in_flight = 0;           // of these, tokens whose step has not been processed yet
  const PrefixHit* hit = nullptr;  // only for a request that is not admitted yet; null: it did not look
  int64_t new_tokens = 0;          // to be computed in this step, drafts included
  int64_t lookahead = 0;           // more slots for drafts
  int64_t most_tokens = 0;         // that the request may come to: its rows are made so long when it is admitted
  bool whole_sequence_must_fit = false;
  int64_t blocks_to_leave_free = 0;
  // It was admitted before: the prefix that it finds is its own, and counts as nobody's reuse.
  bool resumed = false;
  // Gets what the cache has for a request that is admitted by this, and why not more. Null: nobody asks.
  std::optional<CacheReport>* report = nullptr;
};

// Blocks that a step added to rows: `ids` of all groups in turn, group g's from begin(g) to end(g).
struct NewBlocks {
  std::vector<BlockId> ids;
  std::vector<int32_t> ends;  // one a group
};

// Copy block `source` to `target` (same group) before the step's forward pass.
struct BlockCopy {
  GroupId group;
  BlockId source;
  BlockId target;
};

// What one group's part of the cache is doing, and did since the start.
struct GroupStats {
  GroupBlocks blocks;
  int64_t hit_tokens = 0;  // in the blocks that requests took over from the cache when they first ran
};

class Coordinator {
 public:
  // kInvalidRequest or kUnsupported, naming the field, for a configuration that contradicts itself.
  static Result<Coordinator> create(CoordinatorConfig config);

  int64_t num_groups() const { return static_cast<int64_t>(config_.groups.size()); }
  int64_t scheduler_block() const { return config_.scheduler_block; }
  int64_t hash_block() const { return config_.hash_block; }
  int64_t hit_alignment() const { return fine_hits_ ? config_.hash_block : config_.scheduler_block; }
  // The least number of tokens that is reused; 0: no prefix is.
  int64_t minimum_reuse() const;
  bool hits_end_inside_blocks() const { return fine_hits_; }
  bool caching() const { return config_.enable_caching; }
  // Tokens between checkpoints of recurrent states: a state is published only if a step ends at a multiple. 0: none.
  int64_t checkpoint_block() const;
  // Whether some group's hits drop their last block.
  bool drops_last_block() const { return any_drops_last_; }
  int64_t max_model_len() const { return config_.max_model_len; }
  int64_t max_in_flight_tokens() const { return config_.limits.max_in_flight_tokens; }
  const BlockPool& pool() const { return pool_; }
  BlockPool& pool() { return pool_; }

  std::string_view kind(GroupId group) const { return name_of(spec(static_cast<size_t>(group.value))); }
  GroupStats stats(GroupId group) const;

  // The longest prefix, of at most `max_length` tokens, that all groups have. Touches nothing.
  PrefixHit find_hit(std::span<const BlockHash> hashes, int64_t max_length) const;
  // The same for each group alone.
  std::vector<int64_t> hit_lengths(std::span<const BlockHash> hashes, int64_t max_length) const;

  // What the request gets of the cache with `request.hit`, and why not more. Ask before it is given slots.
  CacheReport report(const SlotRequest& request) const;

  // Call before the first allocate() of each step. `now`, in seconds, only dates evictions.
  void begin_step(double now = 0);

  // Gives the request slots for a step: frees what it no longer needs, holds its hit, takes new blocks, publishes full
  // ones. False, with nothing allocated, if blocks are short. `added` (if given) gets the blocks appended to its rows.
  bool allocate(RequestCache& cache, const SlotRequest& request, NewBlocks* added = nullptr);

  // Publishes the blocks of the first `num_tokens` tokens, which are computed and final. `step_end`: the tokens after
  // which the step in question leaves recurrent states behind; without it none are published.
  void publish(RequestCache& cache, const RequestTokens& tokens, int64_t num_tokens,
               std::optional<int64_t> step_end = {});

  // Gives all blocks back, last first. The cache may be admitted again. What was published past `valid_tokens` (of a
  // step that will not run) is forgotten.
  void release(RequestCache& cache, int64_t valid_tokens);

  // Forgets every prefix; blocks stay with those who hold them. For when what a step wrote is not to be trusted.
  void forget_prefixes();

  // One subscriber, who gets every event from now on; an empty function ends it.
  void subscribe(EventSubscriber subscriber) { subscriber_ = std::move(subscriber); }

  // The most blocks that a request of `length` tokens ever holds.
  int64_t max_blocks_held(int64_t length) const;

  // The group's row of block ids, by column.
  std::span<const BlockId> row(const RequestCache& cache, GroupId group) const;

  // Copies that must run before the forward pass of the step that asked for them, oldest first. Both ends stay held
  // until the copy is done.
  std::span<const BlockCopy> pending_copies() const { return copies_; }
  void copies_done(size_t count);

  // kInternal with what is wrong, if an invariant does not hold. `caches` are all live ones.
  Result<void> integrity(std::span<const RequestCache* const> caches) const;

 private:
  struct Group {
    HitRule rule;
    int64_t block_tokens = 0;
    int64_t chunk = 0;
    bool drops_last = false;  // its hits drop one block
    bool cacheable = false;
    bool checkpoints = false;  // recurrent, with copies at block boundaries
    int64_t hit_tokens = 0;    // see GroupStats
  };
  // How far a request's slots reach: for all tokens and the lookahead, and without the lookahead.
  struct Extent {
    int64_t slots;
    int64_t main;
  };
  // Groups that share a spec are looked up together.
  struct LookupClass {
    std::vector<GroupId> ids;
    bool drops_last = false;
  };

  explicit Coordinator(CoordinatorConfig config);
  Result<void> resolve();
  void classify();
  GroupHit look_up(const LookupClass& lookup, bool drop, std::span<const BlockHash> hashes, int64_t max_length) const;
  const CacheSpec& spec(size_t g) const { return config_.groups[g].spec; }

  int64_t most_held(size_t g, int64_t length) const;
  void give_up_shared_tails(RequestCache& cache);
  void free_skipped(RequestCache& cache, int64_t processed);
  void free_columns(GroupState& state, int64_t end);
  int64_t blocks_needed(const RequestCache& cache, const SlotRequest& request, const Extent& extent) const;
  int64_t token_columns(size_t g, int64_t slots) const;
  int64_t token_blocks_needed(size_t g, const GroupState* state, const SlotRequest& request, int64_t slots) const;
  int64_t state_blocks_needed(size_t g, const GroupState* state, const SlotRequest& request, int64_t main) const;
  void hold_hit(RequestCache& cache, const SlotRequest& request);
  void make_room(size_t g, int64_t tokens, GroupState& state) const;
  void count_reuse(size_t g, std::span<const BlockId> blocks);
  void take_blocks(size_t g, GroupState& state, const Extent& extent);
  void take_token_blocks(size_t g, GroupState& state, int64_t slots);
  void take_state_blocks(size_t g, GroupState& state, int64_t main);
  void take(int64_t count, size_t g, std::vector<BlockId>& out);
  BlockId take_one(size_t g);
  void replace_shared_tail(size_t g, GroupState& state);
  void preserve_shared_tail(size_t g, GroupState& state);
  int64_t tokens_to_publish(size_t g, int64_t num_tokens) const;
  void publish_columns(size_t g, GroupState& state, const RequestTokens& tokens, int64_t start, int64_t end);
  // End of the prompt and junction; the second is 0 if there is none.
  using Boundaries = std::array<int64_t, 2>;
  Boundaries reused_boundaries(size_t g, const RequestTokens& tokens) const;
  WriteMaskQuery mask_query(size_t g, const Boundaries& boundaries) const;
  bool may_be_passed(size_t g) const;
  void demote_passed(size_t g, GroupState& state, const RequestTokens& tokens, int64_t num_tokens);
  void discard(BlockId block);
  void give_up(BlockId block);
  void remember_evicted(BlockId block, bool demoted);
  void tell_removed(BlockId block) const;
  void tell_stored(size_t g, const RequestTokens& tokens, int64_t start, int64_t end, int64_t block) const;
  BlockHash hash_at(const RequestTokens& tokens, int64_t length) const {
    return tokens.hashes[static_cast<size_t>(length / config_.hash_block - 1)];
  }
  void publish_tail(size_t g, GroupState& state, const RequestTokens& tokens, int64_t num_tokens);

  CoordinatorConfig config_;
  BlockPool pool_;
  std::vector<Group> groups_;
  std::vector<LookupClass> lookups_;  // full groups first: their scan bounds the others
  bool fine_hits_ = false;
  bool any_drops_last_ = false;
  std::vector<BlockCopy> copies_;
  std::vector<std::pair<GroupId, BlockId>> states_of_this_step_;  // recurrent blocks published since begin_step()
  std::vector<BlockId> scratch_;
  std::vector<bool> mask_;  // of the columns that are published
  EventSubscriber subscriber_;
  EvictedKeys evicted_;
  double now_ = 0;
};

}  // namespace quire::cache
