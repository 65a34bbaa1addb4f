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
  bool samples = false;  // or is pooled; false: only for the log-probability of the prompt token at position + 1
};

// Which logits a request wants.
struct WantedLogits {
  int64_t prompt_from = -1;  // of prompt positions from here on; -1: none
  bool samples = true;       // of its last known token
};

// Fills `batch` (keeping its memory) with the plan's rows, the tables and slots of every KV cache group, and `uses`
// with one entry a logits row; `wanted` has one entry a planned request.
void build_batch(const sched::StepPlan& plan, const sched::Scheduler& scheduler, std::span<const WantedLogits> wanted,
                 exec::RequestTables& tables, exec::StepBatch& batch, std::vector<LogitsUse>& uses);

}  // namespace quire::engine
