#include "engine/batch.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {
namespace {

void add_rows(const sched::PlannedRequest& planned, const sched::RequestState& state, exec::StepBatch& batch) {
  batch.sequences.push_back({batch.rows(), static_cast<int>(planned.num_new), planned.num_computed});
  for (int64_t p = planned.num_computed; p < planned.num_computed + planned.num_new; ++p) {
    batch.tokens.push_back(state.tokens[static_cast<size_t>(p)]);
    batch.positions.push_back(static_cast<int32_t>(p));
  }
}

void add_logits(size_t index, const sched::PlannedRequest& planned, const sched::RequestState& state,
                WantedLogits wanted, exec::StepBatch& batch, std::vector<LogitsUse>& uses) {
  const int64_t end = planned.num_computed + planned.num_new;
  const int first_row = batch.sequences[index].first_row;
  const auto add = [&](int64_t position, bool samples) {
    batch.logits_rows.push_back(first_row + static_cast<int>(position - planned.num_computed));
    uses.push_back({index, position, samples});
  };
  if (wanted.prompt_from >= 0) {
    const int64_t last = std::min(end, state.num_prompt - 1);
    for (int64_t p = std::max(wanted.prompt_from, planned.num_computed); p < last; ++p) add(p, false);
  }
  if (planned.samples && wanted.samples) add(end - 1, true);
}

}  // namespace

void build_batch(const sched::StepPlan& plan, const sched::Scheduler& scheduler, std::span<const WantedLogits> wanted,
                 exec::RequestTables& tables, exec::StepBatch& batch, std::vector<LogitsUse>& uses) {
  batch.tokens.clear();
  batch.positions.clear();
  batch.sequences.clear();
  batch.logits_rows.clear();
  uses.clear();
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const sched::RequestState* state = scheduler.find(plan.requests[i].id);
    QUIRE_CHECK(state != nullptr);
    add_rows(plan.requests[i], *state, batch);
    add_logits(i, plan.requests[i], *state, wanted[i], batch, uses);
  }
  tables.update(plan);
  tables.fill(plan, batch);
}

}  // namespace quire::engine
