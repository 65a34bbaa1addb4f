// Slots for a step: what a request needs, frees and takes in each group.
#include <algorithm>

#include "base/check.h"
#include "cache/coordinator.h"

namespace quire::cache {

void Coordinator::begin_step(double now) {
  states_of_this_step_.clear();
  now_ = now;
}

bool Coordinator::allocate(RequestCache& cache, const SlotRequest& request, NewBlocks* added) {
  QUIRE_CHECK(request.new_tokens > 0);
  QUIRE_CHECK(!cache.admitted_ || request.hit == nullptr);
  const int64_t hit_length = request.hit == nullptr ? 0 : request.hit->length;
  const int64_t computed = request.computed + hit_length;
  if (request.whole_sequence_must_fit) {
    const int64_t whole = std::min(request.tokens.num_tokens(), config_.max_model_len);
    // A group that gives blocks back on the way never holds more than its bound.
    const int64_t need = std::min(blocks_needed(cache, request, {whole, whole}), max_blocks_held(whole));
    if (need + request.blocks_to_leave_free > pool_.free_count()) return false;
  }
  free_skipped(cache, std::max<int64_t>(0, computed - request.in_flight));
  const int64_t main = computed + request.new_tokens;
  const Extent extent{std::min(main + request.lookahead, config_.max_model_len), main};
  const auto fits = [&] {
    return blocks_needed(cache, request, extent) + request.blocks_to_leave_free <= pool_.free_count();
  };
  if (!fits()) {
    give_up_shared_tails(cache);
    if (!fits()) return false;
  }
  if (!cache.admitted_ && request.report != nullptr) *request.report = report(request);
  if (!cache.admitted_) hold_hit(cache, request);  // all groups' hits, before any group takes (and evicts) a block
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupState& state = cache.groups_[g];
    const auto before = state.row.size();
    take_blocks(g, state, extent);
    if (added != nullptr) {
      added->ids.insert(added->ids.end(), state.row.begin() + static_cast<std::ptrdiff_t>(before), state.row.end());
      added->ends.push_back(static_cast<int32_t>(added->ids.size()));
    }
  }
  publish(cache, request.tokens, std::min(main, request.tokens.num_tokens()), main);
  return true;
}

// Only tokens that are processed count: steps in flight still read the blocks below the window of later ones.
void Coordinator::free_skipped(RequestCache& cache, int64_t processed) {
  if (!cache.admitted_) return;
  for (size_t g = 0; g < groups_.size(); ++g) {
    free_columns(cache.groups_[g], skipped_tokens(spec(g), processed) / groups_[g].block_tokens);
  }
}

// A published state that would have to be copied away is worth less than going on: a request at its bound has no block
// for the copy.
void Coordinator::give_up_shared_tails(RequestCache& cache) {
  if (!cache.admitted_) return;
  for (auto& state : cache.groups_) {
    if (!state.shared_tail) continue;
    give_up(state.shared_tail->second);
    state.shared_tail.reset();
  }
}

// Frees the columns before `end`, last first.
void Coordinator::free_columns(GroupState& state, int64_t end) {
  end = std::min(end, static_cast<int64_t>(state.row.size()));
  if (state.first_kept >= end) return;
  scratch_.clear();
  for (int64_t column = end - 1; column >= state.first_kept; --column) {
    BlockId& block = state.row[static_cast<size_t>(column)];
    if (block != kNullBlock) scratch_.push_back(block);
    block = kNullBlock;
  }
  state.first_kept = end;
  pool_.release(scratch_);
}

int64_t Coordinator::blocks_needed(const RequestCache& cache, const SlotRequest& request, const Extent& extent) const {
  int64_t need = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupState* state = cache.admitted_ ? &cache.groups_[g] : nullptr;
    need += groups_[g].checkpoints ? state_blocks_needed(g, state, request, extent.main)
                                   : token_blocks_needed(g, state, request, extent.slots);
  }
  return need;
}

namespace {

std::span<const BlockId> hit_row(const SlotRequest& request, size_t g) {
  if (request.hit == nullptr) return {};
  return request.hit->rows[g];
}

// Free blocks of a hit leave the free list when they are held: they count as needed.
int64_t count_free(const BlockPool& pool, std::span<const BlockId> blocks) {
  return std::ranges::count_if(blocks, [&](BlockId b) { return pool.is_free(b); });
}

}  // namespace

// Columns of a row for so many slots.
int64_t Coordinator::token_columns(size_t g, int64_t slots) const {
  return holds_fixed_blocks(spec(g)) ? most_held(g, slots) : ceil_div(slots, groups_[g].block_tokens);
}

int64_t Coordinator::token_blocks_needed(size_t g, const GroupState* state, const SlotRequest& request,
                                         int64_t slots) const {
  const int64_t block = groups_[g].block_tokens;
  const int64_t required = token_columns(g, slots);
  // Slots given for drafts that were rejected stay: a row may be longer than required.
  if (state != nullptr) return std::max<int64_t>(0, required - static_cast<int64_t>(state->row.size()));

  const auto hits = hit_row(request, g);
  const int64_t computed = request.computed + (request.hit == nullptr ? 0 : request.hit->length);
  const int64_t skipped = skipped_tokens(spec(g), computed) / block;
  int64_t need = std::max<int64_t>(0, required - std::max(skipped, static_cast<int64_t>(hits.size())));
  if (!hits.empty() && computed % block != 0) ++need;  // the copy of the shared tail
  const auto passed = std::min(static_cast<size_t>(skipped), hits.size());
  return need + count_free(pool_, hits.subspan(passed));
}

// A state with checkpoints needs its running block (and those for drafts); columns between checkpoints are null.
int64_t Coordinator::state_blocks_needed(size_t g, const GroupState* state, const SlotRequest& request,
                                         int64_t main) const {
  const auto hits = hit_row(request, g);
  const GroupId id{static_cast<int32_t>(g)};
  // This very step's forward pass has yet to write that state: wait for the next step.
  const auto is_hit = [&](const auto& state_of_step) { return state_of_step == std::pair{id, hits.back()}; };
  if (!hits.empty() && std::ranges::any_of(states_of_this_step_, is_hit)) return pool_.total() + 1;

  const int64_t block = groups_[g].block_tokens;
  const int64_t drafts = std::get<RecurrentState>(spec(g).retention).speculative_blocks;
  const auto held = static_cast<int64_t>(hits.size() + (state == nullptr ? 0 : state->row.size()));
  const int64_t computed = request.computed + (request.hit == nullptr ? 0 : request.hit->length);
  const bool copy = (!hits.empty() && computed % block != 0) || (state != nullptr && state->shared_tail);
  int64_t need = std::max<int64_t>(0, ceil_div(main, block) + drafts - held) + (copy ? 1 : 0);
  if (need > 0) {
    need = 1 + (copy ? 1 : 0);
    if (state == nullptr || !state->has_state) need += drafts;
  }
  return need + count_free(pool_, hits);
}

void Coordinator::hold_hit(RequestCache& cache, const SlotRequest& request) {
  cache.groups_.assign(groups_.size(), {});
  cache.admitted_ = true;
  const int64_t computed = request.computed + (request.hit == nullptr ? 0 : request.hit->length);
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (holds_fixed_blocks(spec(g))) continue;
    GroupState& state = cache.groups_[g];
    const auto hits = hit_row(request, g);
    const auto skipped = static_cast<size_t>(skipped_tokens(spec(g), computed) / groups_[g].block_tokens);
    const auto kept = hits.subspan(std::min(skipped, hits.size()));
    pool_.hold(kept);
    make_room(g, request.most_tokens, state);
    state.row.assign(skipped, kNullBlock);
    state.row.insert(state.row.end(), kept.begin(), kept.end());
    state.published_columns = static_cast<int64_t>(state.row.size());
    if (!request.resumed) count_reuse(g, kept);
    if (may_be_passed(g)) {
      for (size_t column = skipped; column < state.row.size(); ++column) {
        if (state.row[column] != kNullBlock) state.trail.emplace_back(static_cast<int64_t>(column), state.row[column]);
      }
    }
    if (!kept.empty() && computed % groups_[g].block_tokens != 0) {
      state.published_columns = computed / groups_[g].block_tokens;
      state.shared_tail = {{state.published_columns, kept.back()}};
    }
  }
}

// So that later steps of the request need no memory: the row reaches as far as it will, and the trail has room for what
// a boundary leaves behind and the next one adds.
void Coordinator::make_room(size_t g, int64_t tokens, GroupState& state) const {
  const int64_t block = groups_[g].block_tokens;
  state.row.reserve(static_cast<size_t>(ceil_div(std::min(tokens, config_.max_model_len), block)));
  if (!may_be_passed(g)) return;
  state.trail.reserve(static_cast<size_t>(groups_[g].rule.contiguous_blocks + 1 + 2 * (hit_alignment() / block)));
}

void Coordinator::count_reuse(size_t g, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block != kNullBlock) groups_[g].hit_tokens += groups_[g].block_tokens;
    pool_.count_reuse(block);
  }
}

void Coordinator::take_blocks(size_t g, GroupState& state, const Extent& extent) {
  if (groups_[g].checkpoints) {
    take_state_blocks(g, state, extent.main);
  } else {
    take_token_blocks(g, state, extent.slots);
  }
}

void Coordinator::take_token_blocks(size_t g, GroupState& state, int64_t slots) {
  if (state.shared_tail) replace_shared_tail(g, state);
  const int64_t missing = token_columns(g, slots) - static_cast<int64_t>(state.row.size());
  if (missing > 0) take(missing, g, state.row);
}

// The running state lives in the last column but the drafts'. When it moves on to another block, the step copies it
// from the old one, which is freed once that step is processed; columns passed over are null, and the drafts' blocks,
// which nobody else knows, move along.
void Coordinator::take_state_blocks(size_t g, GroupState& state, int64_t main) {
  const int64_t drafts = std::get<RecurrentState>(spec(g).retention).speculative_blocks;
  const int64_t required = ceil_div(main, groups_[g].block_tokens) + drafts;
  const auto before = static_cast<int64_t>(state.row.size());
  const bool had_state = state.has_state;
  state.has_state = true;
  if (required <= before && !state.shared_tail) return;

  const int64_t running = required - drafts - 1;
  while (static_cast<int64_t>(state.row.size()) < running) state.row.push_back(kNullBlock);
  if (had_state) {
    for (int64_t c = before - drafts; c < std::min(before, running); ++c) {
      const BlockId block = state.row[static_cast<size_t>(c)];
      QUIRE_CHECK(pool_.ref_count(block) == 1 && !pool_.index().is_published(block));
      state.row[static_cast<size_t>(c)] = kNullBlock;
      state.row.push_back(block);
    }
  }
  if (state.shared_tail) {
    had_state ? preserve_shared_tail(g, state) : replace_shared_tail(g, state);
  }
  const int64_t missing = required - static_cast<int64_t>(state.row.size());
  if (missing > 0) take(missing, g, state.row);
}

// Callers have made sure that as many are free.
void Coordinator::take(int64_t count, size_t g, std::vector<BlockId>& out) {
  std::function<void(BlockId)> evicted;
  if (subscriber_ || config_.remembered_evictions > 0) {
    evicted = [this](BlockId block) {
      tell_removed(block);
      remember_evicted(block, pool_.is_demoted(block));
    };
  }
  QUIRE_CHECK(pool_.take(count, GroupId{static_cast<int32_t>(g)}, out, evicted).has_value());
}

BlockId Coordinator::take_one(size_t g) {
  scratch_.clear();
  take(1, g, scratch_);
  return scratch_[0];
}

// A new request writes into a copy of the block that its hit ended in. The row's reference to the shared block and one
// more to the copy pin both until the copy has run.
void Coordinator::replace_shared_tail(size_t g, GroupState& state) {
  const auto [column, source] = *state.shared_tail;
  const BlockId target = take_one(g);
  pool_.hold({&target, 1});
  state.row[static_cast<size_t>(column)] = target;
  copies_.push_back({GroupId{static_cast<int32_t>(g)}, source, target});
  state.shared_tail.reset();
}

// A running request that published a state inside its block writes on there, for tables of running requests only grow:
// the published state moves to a copy.
void Coordinator::preserve_shared_tail(size_t g, GroupState& state) {
  const BlockId source = state.shared_tail->second;
  const BlockId target = take_one(g);
  const GroupId id{static_cast<int32_t>(g)};
  pool_.index().move(source, target);
  pool_.hold({&source, 1});
  copies_.push_back({id, source, target});
  states_of_this_step_.emplace_back(id, target);
  state.shared_tail.reset();
}

void Coordinator::copies_done(size_t count) {
  QUIRE_CHECK(count <= copies_.size());
  for (size_t i = 0; i < count; ++i) {
    const BlockId ends[] = {copies_[i].source, copies_[i].target};
    pool_.release(ends);
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(count));
}

void Coordinator::release(RequestCache& cache, int64_t valid_tokens) {
  if (!cache.admitted_) return;
  for (auto& state : cache.groups_) {
    std::ranges::reverse(state.row);
    pool_.release(state.row);
    for (const BlockId block : state.row) {
      if (block != kNullBlock && pool_.index().published_tokens(block) > valid_tokens) discard(block);
    }
  }
  cache.groups_.clear();
  cache.admitted_ = false;
}

}  // namespace quire::cache
