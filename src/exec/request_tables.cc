#include "exec/request_tables.h"

#include <set>
#include <utility>

#include "base/check.h"

namespace quire::exec {

Result<RequestTables> RequestTables::make(const cache::CachePlan& plan, int64_t max_num_seqs) {
  RequestTables tables;
  for (const auto& group : plan.groups) {
    auto table = cache::BlockTable::create(max_num_seqs, group.table_columns);
    if (!table) return std::unexpected(table.error());
    std::set<int64_t> compressed;
    for (const LayerId layer : group.layers)
      compressed.insert(plan.layers[static_cast<size_t>(layer.value)].spec.tokens_per_state);
    compressed.erase(1);
    tables.groups_.push_back({std::move(*table), group.spec, {compressed.begin(), compressed.end()}});
  }
  for (int64_t row = max_num_seqs; row-- > 0;) tables.free_rows_.push_back(static_cast<int32_t>(row));
  return tables;
}

void RequestTables::drop(RequestId id) {
  const auto it = rows_.find(id);
  if (it == rows_.end()) return;
  for (auto& group : groups_) group.table.clear(it->second);
  free_rows_.push_back(it->second);
  rows_.erase(it);
}

int32_t RequestTables::row_of(RequestId id) {
  const auto [it, is_new] = rows_.try_emplace(id, 0);
  if (is_new) {
    QUIRE_CHECK(!free_rows_.empty());
    it->second = free_rows_.back();
    free_rows_.pop_back();
  }
  return it->second;
}

void RequestTables::update(const sched::StepPlan& plan) {
  for (RequestId id : plan.finished) drop(id);
  for (RequestId id : plan.preempted) drop(id);
  batch_rows_.clear();
  starts_.assign(1, 0);
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const sched::PlannedRequest& planned = plan.requests[i];
    const int32_t row = row_of(planned.id);
    for (size_t g = 0; g < groups_.size(); ++g)
      groups_[g].table.append(row, plan.new_blocks(i, GroupId(static_cast<int32_t>(g))));
    batch_rows_.push_back(row);
    starts_.push_back(starts_.back() + static_cast<int32_t>(planned.num_new));
  }
}

void RequestTables::map_tokens(const Group& group, const cache::StepTokens& step, GroupTables& out) {
  out.slots.resize(step.positions.size());
  if (cache::keeps<cache::CircularBuffer>(group.spec))
    return cache::map_ring_slots(group.table, group.spec.block_size, step, out.slots);
  cache::map_slots(group.table, cache::slot_rule(group.spec), {}, step, out.slots);
  out.compressed.resize(group.tokens_per_row.size());
  for (size_t i = 0; i < group.tokens_per_row.size(); ++i) {
    const int64_t tokens = group.tokens_per_row[i];
    out.compressed[i].tokens_per_row = tokens;
    out.compressed[i].slots.resize(step.positions.size());
    cache::map_compressed_slots(group.table, {tokens, group.spec.block_size / tokens}, {}, step, out.slots,
                                out.compressed[i].slots);
  }
}

void RequestTables::fill(const sched::StepPlan& plan, StepBatch& batch) {
  batch.groups.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    GroupTables& out = batch.groups[g];
    out.width = static_cast<int>(group.table.width());
    out.blocks.resize(plan.requests.size() * static_cast<size_t>(out.width));
    skipped_.clear();
    for (const auto& planned : plan.requests)
      skipped_.push_back(cache::skipped_tokens(group.spec, planned.num_computed));
    cache::gather_rows(group.table, {.rows = batch_rows_, .skipped = skipped_, .block_size = group.spec.block_size},
                       out.blocks);
    map_tokens(group, {batch_rows_, starts_, batch.positions}, out);
  }
}

}  // namespace quire::exec
