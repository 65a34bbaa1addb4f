#include "cache/slot_mapping.h"

#include <algorithm>

#include "base/check.h"

namespace quire::cache {
namespace {

// Calls each(row, position, index) for every token of a request that is no dummy.
template <class Each>
void for_each_token(const StepTokens& step, std::span<int64_t> out, Each each) {
  QUIRE_CHECK(step.starts.size() == step.rows.size() + 1);
  QUIRE_CHECK(static_cast<size_t>(step.starts.back()) <= std::min(step.positions.size(), out.size()));
  std::ranges::fill(out, kNoSlot);
  for (size_t r = 0; r < step.rows.size(); ++r) {
    if (step.rows[r] < 0) continue;
    const auto end = static_cast<size_t>(step.starts[r + 1]);
    for (auto i = static_cast<size_t>(step.starts[r]); i < end; ++i) each(step.rows[r], step.positions[i], i);
  }
}

// Row of position p inside its block on this rank, or -1 if another rank keeps it.
int64_t local_row(int64_t p, int64_t block_size, const ContextParallel& ranks) {
  const int64_t v = p % (block_size * ranks.size);
  if (v / ranks.interleave % ranks.size != ranks.rank) return -1;
  return v / (ranks.interleave * ranks.size) * ranks.interleave + v % ranks.interleave;
}

void map_own_slots(const BlockTable& table, int64_t block_size, const StepTokens& step, std::span<int64_t> out) {
  // Neighbouring tokens mostly share a block: divide once per block, not once per token.
  int64_t row = -1;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t block = 0;
  for_each_token(step, out, [&](int64_t r, int64_t p, size_t i) {
    if (r != row || p < begin || p >= end) {
      row = r;
      begin = p / block_size * block_size;
      end = begin + block_size;
      block = table.at(r, p / block_size).value;
    }
    if (block != kNullBlock.value) out[i] = block * block_size + (p - begin);
  });
}

}  // namespace

SlotRule slot_rule(const CacheSpec& spec) {
  return {.block_size = spec.block_size, .written = spec.uses_slot_mapping, .sharded = spec.context_parallel_sharded};
}

void map_slots(const BlockTable& table, const SlotRule& rule, const ContextParallel& ranks, const StepTokens& step,
               std::span<int64_t> out) {
  if (!rule.written) {
    std::ranges::fill(out, kNoSlot);
    return;
  }
  const int64_t block_size = rule.block_size;
  if (!rule.sharded || ranks.size == 1) return map_own_slots(table, block_size, step, out);
  for_each_token(step, out, [&](int64_t row, int64_t p, size_t i) {
    const int64_t own = local_row(p, block_size, ranks);
    const BlockId block = table.at(row, p / (block_size * ranks.size));
    if (own >= 0 && block != kNullBlock) out[i] = block.value * block_size + own;
  });
}

void map_compressed_slots(const BlockTable& table, const Compression& compression, const ContextParallel& ranks,
                          const StepTokens& step, std::span<const int64_t> token_slots, std::span<int64_t> out) {
  const int64_t t = compression.tokens_per_state;
  const int64_t block_size = t * compression.states_per_block;
  QUIRE_CHECK(token_slots.size() >= static_cast<size_t>(step.starts.back()));
  for_each_token(step, out, [&](int64_t row, int64_t p, size_t i) {
    if ((p + 1) % t != 0 || token_slots[i] == kNoSlot) return;
    const int64_t own = local_row(p, block_size, ranks);
    const BlockId block = table.at(row, p / (block_size * ranks.size));
    if (own >= 0 && block != kNullBlock) out[i] = block.value * compression.states_per_block + own / t;
  });
}

void map_ring_slots(const BlockTable& table, int64_t capacity, const StepTokens& step, std::span<int64_t> out) {
  for_each_token(step, out, [&](int64_t row, int64_t p, size_t i) {
    const BlockId block = table.at(row, 0);
    if (block != kNullBlock) out[i] = block.value * capacity + p % capacity;
  });
}

}  // namespace quire::cache
