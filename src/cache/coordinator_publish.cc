// Publishing: which blocks of a request become findable, and under which keys.
#include <algorithm>

#include "base/check.h"
#include "cache/coordinator.h"

namespace quire::cache {

void Coordinator::publish(RequestCache& cache, const RequestTokens& tokens, int64_t num_tokens,
                          std::optional<int64_t> step_end) {
  if (!config_.enable_caching || !cache.admitted_) return;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].cacheable) continue;
    GroupState& state = cache.groups_[g];
    const int64_t hashed = static_cast<int64_t>(tokens.hashes.size()) * config_.hash_block;
    const int64_t count = std::min(tokens_to_publish(g, num_tokens), hashed);
    const int64_t end = count / groups_[g].block_tokens;
    int64_t start = state.published_columns;
    if (groups_[g].checkpoints) {
      // A state is what the step left behind: it stands for a block's end only if the step ended there.
      if (step_end != count) continue;
      start = count % groups_[g].block_tokens == 0 ? std::max(start, end - 1) : end;
    }
    if (start < end) publish_columns(g, state, tokens, start, end);
    if (fine_hits_) publish_tail(g, state, tokens, count);
  }
}

// Hits end at aligned lengths; a group that drops its last block is asked for one block more.
int64_t Coordinator::tokens_to_publish(size_t g, int64_t num_tokens) const {
  if (fine_hits_) return num_tokens;
  const int64_t aligned = num_tokens / config_.scheduler_block * config_.scheduler_block;
  if (!groups_[g].drops_last || groups_[g].checkpoints || aligned == 0) return aligned;
  return std::min(num_tokens, aligned + groups_[g].block_tokens);
}

void Coordinator::publish_columns(size_t g, GroupState& state, const RequestTokens& tokens, int64_t start,
                                  int64_t end) {
  const Group& group = groups_[g];
  const Boundaries boundaries = reused_boundaries(g, tokens);
  const WriteMaskQuery query = mask_query(g, boundaries);
  const bool masked = write_mask(query, start, end, mask_);
  const BlockRange junction =
      tokens.shared_boundary > 0 ? blocks_for_boundary(query, tokens.shared_boundary) : BlockRange{0, 0};
  const bool passable = may_be_passed(g);
  const GroupId id{static_cast<int32_t>(g)};
  int64_t run_start = start;  // of consecutive published columns
  for (int64_t column = start; column < end; ++column) {
    const BlockId block = state.row[static_cast<size_t>(column)];
    if (block == kNullBlock || (masked && !mask_[static_cast<size_t>(column - start)])) {
      tell_stored(g, tokens, run_start * group.block_tokens, column * group.block_tokens, group.block_tokens);
      run_start = column + 1;
      continue;
    }
    const int64_t length = (column + 1) * group.block_tokens;
    const int64_t published = pool_.index().published_tokens(block);
    QUIRE_CHECK(published < length);
    if (published > 0) give_up(block);  // a boundary inside the block gives way to the whole block
    const PrefixIndex::Key key{hash_at(tokens, length), id};
    pool_.index().insert(key, block, length);
    if (passable) state.trail.emplace_back(column, block);
    if (junction.first <= column && column < junction.last) pool_.settle(pool_.index().find(key));  // maybe a duplicate
    if (group.checkpoints) states_of_this_step_.emplace_back(id, block);
  }
  tell_stored(g, tokens, run_start * group.block_tokens, end * group.block_tokens, group.block_tokens);
  state.published_columns = end;
  if (passable) demote_passed(g, state, tokens, end * group.block_tokens);
}

Coordinator::Boundaries Coordinator::reused_boundaries(size_t g, const RequestTokens& tokens) const {
  return {replay_boundary(tokens.num_prompt_tokens, config_.scheduler_block, groups_[g].checkpoints && any_drops_last_),
          tokens.shared_boundary};
}

WriteMaskQuery Coordinator::mask_query(size_t g, const Boundaries& boundaries) const {
  return {.rule = groups_[g].rule,
          .block_tokens = groups_[g].block_tokens,
          .alignment_tokens = hit_alignment(),
          .drops_last_block = groups_[g].drops_last,
          .retention = config_.retention,
          .reused_boundaries = std::span(boundaries).first(boundaries[1] > 0 ? 2 : 1)};
}

// Whether a later boundary takes the worth from the group's blocks before an earlier one.
bool Coordinator::may_be_passed(size_t g) const {
  return config_.retention.keep == RetentionPolicy::Keep::kTurnEnds && is_sparse(groups_[g].rule) &&
         hit_alignment() % groups_[g].block_tokens == 0;
}

// The request has reached a later boundary. Others may still find what served only earlier ones: the blocks it computed
// on the way, and the end of the turn before, which it took over. But unless somebody else holds such a block, or
// several requests began with it, it goes before all that a request ended with.
void Coordinator::demote_passed(size_t g, GroupState& state, const RequestTokens& tokens, int64_t num_tokens) {
  const Boundaries boundaries = reused_boundaries(g, tokens);
  const WriteMaskQuery query = mask_query(g, boundaries);
  const int64_t kept_from = blocks_for_boundary(query, num_tokens).first;
  const GroupId id{static_cast<int32_t>(g)};
  const auto passed = std::ranges::find_if(state.trail, [&](const auto& entry) { return entry.first >= kept_from; });
  for (const auto& [column, block] : std::ranges::subrange(state.trail.begin(), passed)) {
    if (!pool_.index().has({hash_at(tokens, (column + 1) * groups_[g].block_tokens), id}, block)) continue;
    const auto serves = [&, at = column](int64_t boundary) {
      const BlockRange range = blocks_for_boundary(query, boundary);
      return range.first <= at && at < range.last;
    };
    const int own = state.row[static_cast<size_t>(column)] == block ? 1 : 0;
    if (pool_.ref_count(block) > own || std::ranges::any_of(query.reused_boundaries, serves)) continue;
    pool_.demote(block);
  }
  state.trail.erase(state.trail.begin(), passed);
}

// The prompt's last hash boundary, where it lies inside a block. Token caches only append: the block serves the
// boundary whatever follows it, for requests that go on differently. A state is overwritten by the next token: it is
// published only if the step ends at the boundary, and moves to a copy before the next step.
void Coordinator::publish_tail(size_t g, GroupState& state, const RequestTokens& tokens, int64_t num_tokens) {
  const Group& group = groups_[g];
  const int64_t boundary = tokens.num_prompt_tokens / config_.hash_block * config_.hash_block;
  if (boundary == 0 || boundary % group.block_tokens == 0 || boundary > num_tokens) return;
  if (group.checkpoints && boundary != num_tokens) return;
  const auto unit = static_cast<size_t>(boundary / config_.hash_block - 1);
  const int64_t column = boundary / group.block_tokens;
  if (unit >= tokens.hashes.size() || column >= static_cast<int64_t>(state.row.size())) return;
  const BlockId block = state.row[static_cast<size_t>(column)];
  if (block == kNullBlock) return;
  const GroupId id{static_cast<int32_t>(g)};
  const auto before = pool_.index().size();
  pool_.index().insert({tokens.hashes[unit], id}, block, boundary);
  if (pool_.index().size() > before) {
    tell_stored(g, tokens, column * group.block_tokens, boundary, boundary - column * group.block_tokens);
  }
  if (!group.checkpoints) return;
  state.shared_tail = {{column, block}};
  state.published_columns = column;
  states_of_this_step_.emplace_back(id, block);
}

void Coordinator::discard(BlockId block) {
  tell_removed(block);
  pool_.discard(block);
}

// A discard of what was computed, to make room for something better.
void Coordinator::give_up(BlockId block) {
  remember_evicted(block, true);
  discard(block);
}

void Coordinator::remember_evicted(BlockId block, bool demoted) {
  pool_.index().for_each_key(
      block, [&](const PrefixIndex::Key& key, int64_t) { evicted_.add(key, {.when = now_, .demoted = demoted}); });
}

void Coordinator::forget_prefixes() {
  evicted_.forget();
  pool_.forget_all();
  states_of_this_step_.clear();
  if (subscriber_) subscriber_(AllClearedEvent{});
}

void Coordinator::tell_removed(BlockId block) const {
  if (!subscriber_ || !pool_.index().is_published(block)) return;
  RemovedEvent event;
  pool_.index().for_each_key(block, [&](const PrefixIndex::Key& key, int64_t) {
    event.group = key.group;
    event.hashes.push_back(key.hash);
  });
  subscriber_(event);
}

// Tokens [start, end) of the request became findable, in blocks of `block` tokens.
void Coordinator::tell_stored(size_t g, const RequestTokens& tokens, int64_t start, int64_t end, int64_t block) const {
  if (!subscriber_ || start >= end) return;
  StoredEvent event{.group = GroupId{static_cast<int32_t>(g)}, .block_size = block, .spec_kind = name_of(spec(g))};
  if (start > 0) event.parent = hash_at(tokens, start);
  const auto told = tokens.tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
  event.tokens.assign(told.begin(), told.end());
  if (const auto* window = std::get_if<SlidingWindow>(&spec(g).retention)) event.window = window->window;
  if (tokens.keys != nullptr && tokens.keys->adapter) event.adapter = tokens.keys->adapter->name;
  for (int64_t from = start; from < end; from += block) {
    event.hashes.push_back(hash_at(tokens, from + block));
    event.extra_keys.push_back(tokens.keys == nullptr ? std::vector<EventKey>{}
                                                      : event_keys(*tokens.keys, from, from + block));
  }
  subscriber_(event);
}

}  // namespace quire::cache
