// From what the scheduler planned to what the executor computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/request_tables.h"
#include "exec/step_batch.h"
#include "sched/scheduler.h"

namespace quire::engine {

// What one row of logits is for. Rows of a request are in ascending order of position.
struct LogitsUse {
  size_t request = 0;    // index into StepPlan::requests
  int64_t position = 0;  // of the row; its logits are about position + 1
  bool samples = false;  // false: only for the log-probability of the prompt token at position + 1
};

// Fills `batch` (keeping its memory) with the plan's rows, the tables and slots of every KV cache group, and `uses`
// with one entry a logits row. `prompt_rows[i]`: the first position whose logits request i wants for its prompt, or
// -1 for none.
void build_batch(const sched::StepPlan& plan, const sched::Scheduler& scheduler, std::span<const int64_t> prompt_rows,
                 exec::RequestTables& tables, exec::StepBatch& batch, std::vector<LogitsUse>& uses);

}  // namespace quire::engine
