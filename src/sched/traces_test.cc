// The scheduler traces of the reference: every step's tokens, blocks, queues and preemptions, exactly.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sched/scheduler.h"
#include "support/cache_vectors.h"

namespace quire::sched {
namespace {

using nlohmann::json;

// Replays one trace. Ids of the file are names; ours are their places in the file.
class Trace {
 public:
  explicit Trace(const json& c) : c_(c), drafts_per_step_(c.value("drafts_per_step", 0)) {
    for (size_t i = 0; i < c.at("requests").size(); ++i) names_.push_back(c["requests"][i].at("id"));
  }

  void run() {
    auto made = make();
    ASSERT_TRUE(made) << made.error().message;
    scheduler_ = std::make_unique<Scheduler>(std::move(*made));
    const auto& steps = c_.at("expected").at("steps");
    const bool overlapped = config("asyncs", false);
    for (size_t i = 0; i < steps.size() && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      const json& step = steps[i];
      arrive(step.at("step"));
      const StepPlan plan = scheduler_->schedule(c_.at("config").at("budget").get<int64_t>());
      expect_plan(step, plan);
      check();
      if (!overlapped) {
        apply(step, plan);
      } else {
        if (i > 0) apply(steps[i - 1], in_flight_);
        in_flight_ = plan;
        if (i + 1 == steps.size()) apply(step, plan);
      }
    }
    for (const auto& [name, tokens] : c_.at("expected").at("outputs").items()) {
      EXPECT_EQ(outputs_[name], tokens.get<std::vector<TokenId>>()) << name;
    }
    EXPECT_FALSE(scheduler_->has_work());
  }

 private:
  template <class T>
  T config(const char* key, T otherwise) const {
    return c_.at("config").value(key, otherwise);
  }

  Result<Scheduler> make() const {
    const int64_t budget = c_.at("config").at("budget");
    const bool overlapped = config("asyncs", false);
    cache::CoordinatorConfig cache{.num_blocks = config("nb", int64_t{0}),
                                   .max_model_len = 512,
                                   .limits = {.max_in_flight_tokens = overlapped ? 2 * budget : budget},
                                   .scheduler_block = config("bs", int64_t{0}),
                                   .hash_block = c_.at("hash_block_size"),
                                   .enable_caching = config("caching", true)};
    for (const auto& group : c_.at("config").at("groups")) {
      const cache::CacheSpec spec = cache::spec_from_json(group);
      cache.groups.push_back({.spec = spec, .hit = cache::hit_rule(spec, 1)});
    }
    if (const auto& settings = c_.at("config"); settings.contains("retention") && !settings["retention"].is_null()) {
      using Keep = cache::RetentionPolicy::Keep;
      const int64_t interval = settings["retention"];
      cache.retention = {interval == 0 ? Keep::kKnownReuse : Keep::kEveryInterval, interval};
    }
    return Scheduler::create(
        {.max_num_seqs = config("max_seqs", int64_t{1}),
         .long_prefill_threshold = config("long_thr", int64_t{0}),
         .policy = config("policy", std::string("fcfs")) == "priority" ? Policy::kPriority : Policy::kFcfs,
         .num_draft_tokens = config("spec_k", int64_t{0}),
         .num_lookahead_tokens = config("lookahead", int64_t{0}),
         .overlapped = overlapped},
        std::move(cache));
  }

  const std::string& name(RequestId id) const { return names_[id.value]; }
  RequestId id(const std::string& name) const {
    return RequestId{static_cast<uint64_t>(std::ranges::find(names_, name) - names_.begin())};
  }

  void arrive(int64_t step) {
    for (const auto& r : c_.at("requests")) {
      if (r.at("arrive") == step) {
        const auto added = scheduler_->add({.id = id(r.at("id")),
                                            .prompt = r.at("prompt").get<std::vector<TokenId>>(),
                                            .max_tokens = r.at("max_tokens"),
                                            .priority = r.value("priority", 0)});
        ASSERT_TRUE(added) << added.error().message;
      }
      if (!r.contains("abort") || r["abort"] != step) continue;
      EXPECT_TRUE(scheduler_->abort(id(r.at("id"))));
    }
  }

  std::vector<std::string> names(const std::vector<RequestId>& ids) const {
    std::vector<std::string> list;
    for (const RequestId id : ids) list.push_back(name(id));
    return list;
  }

  json blocks(const StepPlan& plan, size_t request) const {
    json groups = json::array();
    for (int32_t g = 0; g < plan.num_groups; ++g) {
      json ids = json::array();
      for (const BlockId block : plan.new_blocks(request, GroupId{g})) ids.push_back(block.value);
      groups.push_back(ids);
    }
    return groups;
  }

  void expect_plan(const json& step, const StepPlan& plan) {
    json fresh = json::array();
    std::map<std::string, json> going;
    std::map<std::string, int64_t> scheduled;
    std::map<std::string, int64_t> drafts;
    for (size_t i = 0; i < plan.requests.size(); ++i) {
      const auto& r = plan.requests[i];
      scheduled[name(r.id)] = r.num_new;
      if (r.num_drafts > 0) drafts[name(r.id)] = r.num_drafts;
      json entry = {{"id", name(r.id)}, {"num_computed_tokens", r.num_computed}};
      if (r.first && !r.resumed) {
        entry["block_ids"] = blocks(plan, i);
        fresh.push_back(entry);
        continue;
      }
      json ids = blocks(plan, i);
      const bool none = std::ranges::all_of(ids, [](const json& group) { return group.empty(); });
      entry["resumed"] = r.resumed;
      entry["new_block_ids"] = none ? json(nullptr) : ids;
      going[name(r.id)] = entry;
    }
    EXPECT_EQ(scheduled, (step.at("num_scheduled_tokens").get<std::map<std::string, int64_t>>()));
    EXPECT_EQ(plan.total_tokens, step.at("total"));
    EXPECT_EQ(fresh, step.value("new", json::array()));
    std::map<std::string, json> expected_going;
    for (const auto& entry : step.value("cached", json::array())) expected_going[entry.at("id")] = entry;
    EXPECT_EQ(going, expected_going);
    EXPECT_EQ(drafts, (step.value("spec", json::object()).get<std::map<std::string, int64_t>>()));
    EXPECT_EQ(names(plan.preempted), step.value("preempted", std::vector<std::string>()));
    const auto finished = names(plan.finished);
    EXPECT_EQ(std::multiset<std::string>(finished.begin(), finished.end()),
              step.value("finished_before_step", json::array()).get<std::multiset<std::string>>());
    EXPECT_EQ(names(scheduler_->running()), step.at("running_after").get<std::vector<std::string>>());
    EXPECT_EQ(names(scheduler_->waiting()), step.at("waiting_after").get<std::vector<std::string>>());
    EXPECT_EQ(scheduler_->stats().free_blocks, step.at("free_blocks"));
  }

  void apply(const json& step, const StepPlan& plan) {
    const auto& sampled = step.at("sampled");
    std::deque<std::vector<TokenId>> tokens;
    std::vector<RequestOutput> outputs;
    for (const auto& r : plan.requests) {
      EXPECT_EQ(r.samples, sampled.contains(name(r.id))) << name(r.id);
      if (!sampled.contains(name(r.id))) continue;
      tokens.push_back(sampled[name(r.id)].get<std::vector<TokenId>>());
      outputs.push_back({.id = r.id, .tokens = tokens.back()});
      auto& all = outputs_[name(r.id)];
      all.insert(all.end(), tokens.back().begin(), tokens.back().end());
    }
    // What a request that ends here had computed is known only beforehand, with its rejected drafts.
    std::map<std::string, int64_t> computed;
    for (const auto& r : plan.requests) {
      const auto* request = scheduler_->find(r.id);
      if (request == nullptr) continue;
      computed[name(r.id)] = request->num_computed;
      if (r.num_drafts == 0) continue;
      computed[name(r.id)] -= r.num_drafts + 1 - static_cast<int64_t>(sampled[name(r.id)].size());
    }
    const auto ended = scheduler_->apply(plan, outputs);
    for (auto& [who, count] : computed) {
      const auto* request = scheduler_->find(id(who));
      if (request != nullptr) count = request->num_computed;
    }
    EXPECT_EQ(computed, (step.at("num_computed_after_output").get<std::map<std::string, int64_t>>()));
    EXPECT_EQ(names(ended), step.at("finished_in_step").get<std::vector<std::string>>());
    check();
    propose();
    EXPECT_EQ(scheduler_->stats().free_blocks, step.at("free_blocks_after_output"));
  }

  // The drafts' values do not matter: the file says how many were accepted.
  void propose() {
    const std::vector<TokenId> drafts(static_cast<size_t>(drafts_per_step_), 7);
    if (drafts.empty()) return;
    for (const RequestId r : scheduler_->running()) scheduler_->set_drafts(r, drafts);
  }

  void check() const {
    const auto ok = scheduler_->integrity();
    EXPECT_TRUE(ok) << ok.error().message;
  }

  const json& c_;
  const int drafts_per_step_;
  std::vector<std::string> names_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan in_flight_;
  std::map<std::string, std::vector<TokenId>> outputs_;
};

TEST(CacheVectors, SchedulerTraces) {
  const json file = cache::load_vectors("scheduler_traces.json");
  size_t run = 0;
  for (const auto& c : file.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    Trace(c).run();
    ++run;
    if (HasFailure()) return;
  }
  if (!cache::uses_own_vectors()) return;
  EXPECT_EQ(run, 21U);
}

}  // namespace
}  // namespace quire::sched
