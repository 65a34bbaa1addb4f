// No sequence of operations may break the invariants of cache and scheduler: bytes choose the kinds of layers, a small
// pool, and then requests, steps, outputs and aborts. Integrity is proved after each; at the end every block is free.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace {

using namespace quire;
using cache::CacheSpec;

// The bytes of the input as small numbers; zero once they are used up.
class Choices {
 public:
  explicit Choices(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool more() const { return !bytes_.empty(); }
  int64_t in(int64_t least, int64_t most) {
    if (!more()) return least;
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return least + byte % (most - least + 1);
  }

 private:
  std::span<const uint8_t> bytes_;
};

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check(const sched::Scheduler& scheduler) {
  const auto ok = scheduler.integrity();
  require(ok.has_value(), ok ? "" : ok.error().message.c_str());
}

CacheSpec choose_spec(Choices& choices) {
  CacheSpec spec{.block_size = int64_t{1} << choices.in(0, 3), .state_bytes = 16};
  switch (choices.in(0, 5)) {
    case 0:
      spec.retention = cache::SlidingWindow{.window = choices.in(1, 24), .extra_retained = choices.in(0, 2)};
      break;
    case 1:
      spec.retention = cache::ChunkedLocal{.chunk = spec.block_size * choices.in(1, 4)};
      break;
    case 2:
      spec.retention = cache::CircularBuffer{};
      spec.prefix_cacheable = false;
      break;
    case 3:
      spec.storage = cache::Storage::kState;
      spec.retention = cache::RecurrentState{.checkpoints = cache::RecurrentState::Checkpoints::kAlign};
      break;
    case 4:
      spec.storage = cache::Storage::kLatent;
      spec.tokens_per_state = choices.in(0, 1) == 0 ? 1 : spec.block_size;
      break;
    default:
      break;
  }
  return spec;
}

Result<sched::Scheduler> choose_scheduler(Choices& choices) {
  cache::CoordinatorConfig cache;
  cache.max_model_len = choices.in(2, 80);
  cache.enable_caching = choices.in(0, 4) > 0;
  cache.limits.max_in_flight_tokens = choices.in(1, 40);
  cache.num_blocks = choices.in(2, 90);
  using Keep = cache::RetentionPolicy::Keep;
  constexpr Keep kPolicies[] = {Keep::kEveryBoundary, Keep::kKnownReuse, Keep::kTurnEnds};
  cache.retention.keep = kPolicies[choices.in(0, 2)];
  bool recurrent = false;
  for (int64_t groups = choices.in(1, 4); groups > 0; --groups) {
    const CacheSpec spec = choose_spec(choices);
    recurrent |= cache::keeps<cache::RecurrentState>(spec);
    cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1), .drops_block = choices.in(0, 6) == 6});
  }
  sched::SchedulerConfig config;
  config.max_num_seqs = choices.in(1, 6);
  config.policy = choices.in(0, 1) == 0 ? sched::Policy::kFcfs : sched::Policy::kPriority;
  config.long_prefill_threshold = choices.in(0, 12);
  config.reserve_whole_sequence = choices.in(0, 3) == 3;
  if (!recurrent) {
    config.num_draft_tokens = choices.in(0, 3);
    config.num_lookahead_tokens = choices.in(0, config.num_draft_tokens);
  }
  return sched::Scheduler::create(config, std::move(cache));
}

void add_request(Choices& choices, sched::Scheduler& scheduler, uint64_t id) {
  sched::RequestInit init{.id = RequestId{id}, .prompt = {}};
  for (int64_t n = choices.in(0, 70); n > 0; --n)  // prefixes are shared where a byte says so
    init.prompt.push_back(n % 8 == 0 ? static_cast<TokenId>(choices.in(0, 1)) : 0);
  init.max_tokens = choices.in(0, 20);
  init.priority = static_cast<int>(choices.in(0, 3));
  if (choices.in(0, 5) == 5) init.keys.cache_salt = "s";
  init.skip_prefix_lookup = choices.in(0, 7) == 7;
  (void)scheduler.add(std::move(init));
}

void run_step(Choices& choices, sched::Scheduler& scheduler) {
  const int64_t tokens = choices.in(1, 40);
  const sched::StepPlan plan = scheduler.schedule({tokens, choices.in(0, 10)});
  check(scheduler);
  std::vector<std::vector<TokenId>> answers(plan.requests.size());
  std::vector<sched::RequestOutput> outputs;
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const auto& planned = plan.requests[i];
    if (!planned.samples) continue;
    for (int64_t n = choices.in(0, planned.num_drafts); n >= 0; --n)
      answers[i].push_back(static_cast<TokenId>(choices.in(0, 1)));
    outputs.push_back({.id = planned.id, .tokens = answers[i], .stopped = choices.in(0, 15) == 15});
  }
  scheduler.apply(plan, outputs);
  for (const auto& planned : plan.requests) {
    const std::vector<TokenId> drafts(static_cast<size_t>(scheduler.config().num_draft_tokens), 0);
    if (choices.in(0, 1) == 1) scheduler.set_drafts(planned.id, drafts);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices choices({data, size});
  auto scheduler = choose_scheduler(choices);
  if (!scheduler) return 0;
  uint64_t next = 0;
  while (choices.more()) {
    switch (choices.in(0, 7)) {
      case 0:
      case 1:
        add_request(choices, *scheduler, next++);
        break;
      case 2:
        scheduler->abort(RequestId{static_cast<uint64_t>(choices.in(0, 255))});
        break;
      case 3:
        if (choices.in(0, 15) == 15) scheduler->forget_prefixes();
        break;
      default:
        run_step(choices, *scheduler);
    }
    check(*scheduler);
  }
  for (uint64_t id = 0; id < next; ++id) scheduler->abort(RequestId{id});
  check(*scheduler);
  require(scheduler->stats().free_blocks == scheduler->stats().total_blocks, "blocks are held by nobody");
  return 0;
}
