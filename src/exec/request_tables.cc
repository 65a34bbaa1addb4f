#include "exec/request_tables.h"

#include <utility>

#include "base/check.h"

namespace quire::exec {
namespace {

int64_t reach_of(const cache::CacheSpec& spec) {
  const auto* window = std::get_if<cache::SlidingWindow>(&spec.retention);
  return window == nullptr ? 0 : window->window - 1 + window->extra_retained;
}

}  // namespace

Result<RequestTables> RequestTables::make(std::span<const cache::CacheGroup> groups, int64_t max_num_seqs) {
  RequestTables tables;
  for (const auto& group : groups) {
    auto table = cache::BlockTable::create(max_num_seqs, group.table_columns);
    if (!table) return std::unexpected(table.error());
    tables.groups_.push_back({std::move(*table), cache::slot_rule(group.spec), reach_of(group.spec)});
  }
  for (int64_t row = max_num_seqs; row-- > 0;) tables.free_rows_.push_back(static_cast<int32_t>(row));
  tables.computed_.resize(static_cast<size_t>(max_num_seqs));
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
    computed_[static_cast<size_t>(row)] = static_cast<int32_t>(planned.num_computed);
    batch_rows_.push_back(row);
    starts_.push_back(starts_.back() + static_cast<int32_t>(planned.num_new));
  }
}

void RequestTables::fill(const sched::StepPlan& plan, StepBatch& batch) {
  batch.groups.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    GroupTables& out = batch.groups[g];
    out.width = static_cast<int>(group.table.width());
    out.blocks.resize(plan.requests.size() * static_cast<size_t>(out.width));
    cache::gather_rows(
        group.table,
        {.rows = batch_rows_, .num_computed = computed_, .block_size = group.slots.block_size, .reach = group.reach},
        out.blocks);
    out.slots.resize(batch.positions.size());
    cache::map_slots(group.table, group.slots, {}, {batch_rows_, starts_, batch.positions}, out.slots);
  }
}

}  // namespace quire::exec
