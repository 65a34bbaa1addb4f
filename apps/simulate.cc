// quire simulate: a trace of requests against cache and scheduler, without a model. One run for each cache size, and
// one more with the hybrid cache off if both are asked for; the trace is read anew for each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cache/layer_file.h"
#include "cache/layout.h"
#include "commands.h"
#include "engine/loaded_model.h"
#include "sched/trace_file.h"

namespace quire::apps {
namespace {

constexpr size_t kMaxLayerFile = size_t{4} << 20;

struct Run {
  EngineOptions options;
  engine::PlannedCache cache;
  sched::SimulationReport report;
};

Result<std::string> read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxLayerFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty())
    return fail(ErrorKind::kNotFound, fmt::format("layer file {} cannot be read, or is empty", path.string()));
  if (text.size() > kMaxLayerFile)
    return fail(ErrorKind::kInvalidRequest,
                fmt::format("layer file {} is longer than {} bytes", path.string(), kMaxLayerFile));
  return text;
}

// What no kernel can run may be planned: the file may be of a model for another engine.
Result<engine::PlannedCache> plan_of_file(const EngineOptions& options) {
  auto text = read_text(options.model);
  if (!text) return std::unexpected(text.error());
  auto file = cache::parse_layer_file(*text, engine::block_size_of(options));
  if (!file) return std::unexpected(file.error());
  auto planned = engine::plan_for(file->layers, options, file->max_model_len, 0);
  if (!planned) return planned;
  if (auto executable = cache::check_executable(planned->plan); !executable) {
    if (!planned->notice.empty()) planned->notice += "; ";
    planned->notice += "no kernel of quire runs this: " + in_flags(executable.error()).message;
  }
  return planned;
}

Result<engine::PlannedCache> plan_of_model(const EngineOptions& options) {
  auto opened = engine::open_model(options);
  if (!opened) return std::unexpected(opened.error());
  auto outline = engine::outline_model(*opened, options);
  if (!outline) return std::unexpected(outline.error());
  return engine::PlannedCache{std::move(outline->plan), std::move(outline->notice)};
}

sched::StepCost cost_of(const SimulateFlags& flags) {
  const double token_ns = 1e9 / flags.prefill_speed;
  const double step_ns = std::max(0.0, 1e9 / flags.decode_speed - token_ns);
  return {std::llround(step_ns), std::llround(token_ns)};
}

Result<void> check_size(const EngineOptions& options, const cache::CachePlan& plan) {
  if (plan.num_blocks <= sched::kMostSimulated) return {};
  return fail(ErrorKind::kInvalidRequest,
              fmt::format("kv_cache_memory_bytes {}: more than {} blocks of {} bytes cannot be simulated; give at most "
                          "{} bytes, or larger blocks by block_size",
                          options.kv_cache_bytes.value_or(static_cast<size_t>(plan.allocation_bytes)),
                          sched::kMostSimulated, plan.bytes_per_block, sched::kMostSimulated * plan.bytes_per_block),
              "kv_cache_memory_bytes");
}

Result<Run> run(const SimulateFlags& flags, EngineOptions options) {
  auto planned = options.model.extension() == ".json" ? plan_of_file(options) : plan_of_model(options);
  if (!planned) return std::unexpected(planned.error());
  if (auto fits = check_size(options, planned->plan); !fits) return std::unexpected(fits.error());
  sched::SimulationConfig config;
  config.scheduler.max_num_seqs = options.max_num_seqs;
  if (options.priority_scheduling) config.scheduler.policy = sched::Policy::kPriority;
  config.cache = cache::coordinator_config(planned->plan, {.max_in_flight_tokens = options.max_num_batched_tokens},
                                           options.prefix_caching);
  if (flags.retention == "turn-ends") config.cache.retention.keep = cache::RetentionPolicy::Keep::kTurnEnds;
  config.cost = cost_of(flags);
  config.step_seconds = std::chrono::duration<double>(options.step_time).count();
  config.max_tokens = options.max_num_batched_tokens;
  config.max_waiting = options.max_waiting_requests;
  config.check_integrity = options.check_integrity;

  auto trace = sched::TraceFile::open(flags.trace);
  if (!trace) return std::unexpected(trace.error());
  auto report = sched::simulate(config, [&] { return trace->next(); });
  if (!report && report.error().param == "cost")
    return fail(report.error().kind, fmt::format("--prefill-speed {}, --decode-speed {}: {}", flags.prefill_speed,
                                                 flags.decode_speed, report.error().message));
  if (!report) return std::unexpected(report.error());
  return Run{std::move(options), std::move(*planned), std::move(*report)};
}

std::vector<EngineOptions> variants(const SimulateFlags& flags) {
  std::vector<EngineOptions> all;
  const auto add = [&](const EngineOptions& options) {
    all.push_back(options);
    if (!flags.compare_hybrid || !options.hybrid_kv_cache) return;
    all.push_back(options);
    all.back().hybrid_kv_cache = false;
  };
  if (flags.sweep.empty()) add(flags.engine);
  for (const int64_t bytes : flags.sweep) {
    EngineOptions options = flags.engine;
    options.kv_cache_bytes = static_cast<size_t>(bytes);
    add(options);
  }
  return all;
}

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

double share(double blocks, const sched::SimulationReport& report) {
  return report.total_blocks == 0 ? 0 : blocks / static_cast<double>(report.total_blocks);
}

// Seconds, to three digits at least.
std::string time_cell(int64_t ns) {
  return ns < 100'000'000'000 ? fmt::format("{:.3g} s", seconds(ns)) : fmt::format("{:.0f} s", seconds(ns));
}

struct Row {
  const char* name;
  std::string (*cell)(const Run&);
};

const Row kRows[] = {
    {"cache, MiB",
     [](const Run& r) {
       return fmt::format("{:.1f}", static_cast<double>(r.cache.plan.allocation_bytes) / (1 << 20));
     }},
    {"hybrid cache", [](const Run& r) { return std::string(r.options.hybrid_kv_cache ? "on" : "off"); }},
    {"blocks", [](const Run& r) { return fmt::format("{}", r.report.total_blocks); }},
    {"longest request, tokens", [](const Run& r) { return fmt::format("{}", r.cache.plan.max_model_len); }},
    {"requests", [](const Run& r) { return fmt::format("{}", r.report.requests); }},
    {"  refused", [](const Run& r) { return fmt::format("{}", r.report.refused); }},
    {"  held back by a full queue", [](const Run& r) { return fmt::format("{}", r.report.held_back); }},
    {"simulated time", [](const Run& r) { return time_cell(r.report.duration_ns); }},
    {"steps", [](const Run& r) { return fmt::format("{}", r.report.steps); }},
    {"prompt tokens", [](const Run& r) { return fmt::format("{}", r.report.prompt_tokens); }},
    {"  from the prefix cache", [](const Run& r) { return fmt::format("{:.1f} %", 100 * r.report.hit_rate()); }},
    {"output tokens", [](const Run& r) { return fmt::format("{}", r.report.output_tokens); }},
    {"computed tokens", [](const Run& r) { return fmt::format("{}", r.report.computed_tokens); }},
    {"preemptions", [](const Run& r) { return fmt::format("{}", r.report.preemptions); }},
    {"evictions", [](const Run& r) { return fmt::format("{}", r.report.evictions); }},
    {"blocks held, mean",
     [](const Run& r) { return fmt::format("{:.1f} %", 100 * share(r.report.blocks.mean(), r.report)); }},
    {"blocks held, peak",
     [](const Run& r) {
       return fmt::format("{:.1f} %", 100 * share(static_cast<double>(r.report.blocks.max()), r.report));
     }},
    {"requests in a step, mean", [](const Run& r) { return fmt::format("{:.1f}", r.report.running.mean()); }},
    {"requests in a step, peak", [](const Run& r) { return fmt::format("{}", r.report.running.max()); }},
    {"waiting, steps, p50", [](const Run& r) { return fmt::format("{}", r.report.waited_steps.quantile(0.5)); }},
    {"waiting, steps, p99", [](const Run& r) { return fmt::format("{}", r.report.waited_steps.quantile(0.99)); }},
    {"waiting, p50", [](const Run& r) { return time_cell(r.report.waited_ns.quantile(0.5)); }},
    {"waiting, p99", [](const Run& r) { return time_cell(r.report.waited_ns.quantile(0.99)); }},
    {"first token, p50", [](const Run& r) { return time_cell(r.report.first_token_ns.quantile(0.5)); }},
    {"first token, p99", [](const Run& r) { return time_cell(r.report.first_token_ns.quantile(0.99)); }},
};

// One line a group, for a single run: with groups on and off side by side they are not the same groups.
void print_groups(const Run& r) {
  const auto lines = engine::describe_groups(r.cache.plan);
  for (size_t g = 0; g < lines.size(); ++g) {
    const sched::SimulatedGroup& group = r.report.groups[g];
    fmt::print("{}\n  held {:.1f} % on average, {:.1f} % at most; {} tokens taken over, {} evictions\n", lines[g],
               100 * share(group.held.mean(), r.report), 100 * share(static_cast<double>(group.held.max()), r.report),
               group.hit_tokens, group.evictions);
  }
}

void print_table(const std::vector<Run>& runs) {
  for (const Row& row : kRows) {
    std::string line = fmt::format("{:<28}", row.name);
    for (const Run& r : runs) line += fmt::format("{:>14}", row.cell(r));
    fmt::print("{}\n", line);
  }
  if (runs.size() == 1) print_groups(runs.front());
  for (const Run& r : runs) {
    if (!r.cache.notice.empty()) fmt::print("notice: {}\n", r.cache.notice);
    if (r.report.refused > 0) fmt::print("first refused: {}\n", r.report.first_refusal);
  }
}

nlohmann::json times_json(const sched::Distribution& ns) {
  return {{"mean", ns.mean() * 1e-9},
          {"p50", seconds(ns.quantile(0.5))},
          {"p99", seconds(ns.quantile(0.99))},
          {"max", seconds(ns.max())}};
}

nlohmann::json counts_json(const sched::Distribution& counts) {
  return {
      {"mean", counts.mean()}, {"p50", counts.quantile(0.5)}, {"p99", counts.quantile(0.99)}, {"max", counts.max()}};
}

nlohmann::json groups_json(const Run& r) {
  const auto lines = engine::describe_groups(r.cache.plan);
  nlohmann::json groups = nlohmann::json::array();
  for (size_t g = 0; g < lines.size(); ++g) {
    const sched::SimulatedGroup& group = r.report.groups[g];
    groups.push_back({{"description", lines[g]},
                      {"blocks_held", counts_json(group.held)},
                      {"hit_tokens", group.hit_tokens},
                      {"evictions", group.evictions}});
  }
  return groups;
}

nlohmann::json run_json(const Run& r) {
  const sched::SimulationReport& report = r.report;
  nlohmann::json out = {{"kv_cache_bytes", r.cache.plan.allocation_bytes},
                        {"hybrid", r.options.hybrid_kv_cache},
                        {"layout", cache::name_of(r.cache.plan.layout)},
                        {"max_model_len", r.cache.plan.max_model_len},
                        {"blocks", report.total_blocks},
                        {"notice", r.cache.notice},
                        {"requests", report.requests},
                        {"refused", report.refused},
                        {"first_refusal", report.first_refusal},
                        {"held_back", report.held_back},
                        {"seconds", seconds(report.duration_ns)},
                        {"steps", report.steps},
                        {"prompt_tokens", report.prompt_tokens},
                        {"cached_tokens", report.cached_tokens},
                        {"hit_rate", report.hit_rate()},
                        {"output_tokens", report.output_tokens},
                        {"computed_tokens", report.computed_tokens},
                        {"preemptions", report.preemptions},
                        {"evictions", report.evictions}};
  out["groups"] = groups_json(r);
  out["blocks_held"] = counts_json(report.blocks);
  out["requests_in_a_step"] = counts_json(report.running);
  out["waiting_steps"] = counts_json(report.waited_steps);
  out["waiting_seconds"] = times_json(report.waited_ns);
  out["first_token_seconds"] = times_json(report.first_token_ns);
  return out;
}

}  // namespace

int simulate(const SimulateFlags& flags) {
  std::vector<Run> runs;
  for (EngineOptions& options : variants(flags)) {
    auto done = run(flags, std::move(options));
    if (!done) return report(flags.sweep.empty() ? done.error() : in_flags(done.error(), "--sweep"));
    runs.push_back(std::move(*done));
  }
  if (!flags.json) {
    print_table(runs);
    return 0;
  }
  nlohmann::json out = nlohmann::json::array();
  for (const Run& r : runs) out.push_back(run_json(r));
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace quire::apps
