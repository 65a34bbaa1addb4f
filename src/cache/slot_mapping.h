// A slot says where a token's state is written: block * states_per_block + row, in manager blocks of the group; kNoSlot
// where nothing is written (padding, another context-parallel rank's token, a null block).
//
// The functions are pure: they read tables and positions and fill `out` completely. `out` may be longer than the step's
// tokens; the rest becomes kNoSlot. Positions are below 2^31.
#pragma once

#include <cstdint>
#include <span>

#include "cache/block_table.h"
#include "cache/spec.h"

namespace quire::cache {

inline constexpr int64_t kNoSlot = -1;

// The tokens of a step, request after request: request i has tokens [starts[i], starts[i+1]).
struct StepTokens {
  std::span<const int32_t> rows;    // block-table row of each request; -1: a dummy that writes nothing
  std::span<const int32_t> starts;  // rows.size() + 1 ascending offsets, the first 0
  std::span<const int32_t> positions;
};

// Which tokens of a block this rank keeps: runs of `interleave` tokens go round the ranks.
struct ContextParallel {
  int64_t size = 1;
  int64_t rank = 0;
  int64_t interleave = 1;
};

// What a group's slots depend on.
struct SlotRule {
  int64_t block_size = 1;
  bool written = true;  // false: layers of this group find their rows themselves; all slots are kNoSlot
  bool sharded = true;  // false: every rank keeps every token
};
SlotRule slot_rule(const CacheSpec& spec);

// Token caches: slot = table[p / bs] * bs + p % bs. With context parallelism a block id covers bs * size tokens:
// v = p % (bs * size); owner = (v / I) % size; row = v / (I * size) * I + v % I.
void map_slots(const BlockTable& table, const SlotRule& rule, const ContextParallel& ranks, const StepTokens& step,
               std::span<int64_t> out);

// Compressed caches, one state for t tokens: the last token of each t writes, if its own slot (`token_slots`, by
// map_slots) is one; slot = block * (bs / t) + row / t.
struct Compression {
  int64_t tokens_per_state = 1;
  int64_t states_per_block = 1;
};
void map_compressed_slots(const BlockTable& table, const Compression& compression, const ContextParallel& ranks,
                          const StepTokens& step, std::span<const int64_t> token_slots, std::span<int64_t> out);

// Circular buffers: slot = block * capacity + p % capacity, the block being column 0 of the request's row.
void map_ring_slots(const BlockTable& table, int64_t capacity, const StepTokens& step, std::span<int64_t> out);

}  // namespace quire::cache
