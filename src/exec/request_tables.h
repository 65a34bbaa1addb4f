// The block tables of all running requests, one table per KV cache group, kept up to date from step plans alone.
//
// A request has one row number, the same in every group's table, from its first step until it ends or is preempted.
// update() takes what a plan added and dropped; fill() copies the rows of a plan's requests into the batch, each
// group's own, with the blocks below a window null, and maps each new token to its slot. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "cache/block_table.h"
#include "cache/planner.h"
#include "cache/slot_mapping.h"
#include "exec/step_batch.h"
#include "quire/error.h"
#include "sched/scheduler.h"

namespace quire::exec {

class RequestTables {
 public:
  static Result<RequestTables> make(const cache::CachePlan& plan, int64_t max_num_seqs);

  // Every plan must pass through here once, in order.
  void update(const sched::StepPlan& plan);

  // batch.sequences and batch.positions must be those of the plan.
  void fill(const sched::StepPlan& plan, StepBatch& batch);

 private:
  struct Group {
    cache::BlockTable table;
    cache::CacheSpec spec;
    std::vector<int64_t> tokens_per_row;  // of its compressed layers, each once
  };

  void drop(RequestId id);
  // The slots of the step's tokens in one group.
  static void map_tokens(const Group& group, const cache::StepTokens& step, GroupTables& out);
  int32_t row_of(RequestId id);

  std::vector<Group> groups_;
  std::unordered_map<RequestId, int32_t> rows_;
  std::vector<int32_t> free_rows_;
  std::vector<int32_t> batch_rows_, starts_;  // of the current plan
  std::vector<int64_t> skipped_;              // scratch of fill()
};

}  // namespace quire::exec
