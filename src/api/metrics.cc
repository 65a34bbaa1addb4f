#include "api/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace quire::api {
namespace {

// vLLM's bounds, so that histograms of both can be added.
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kLatencyBounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kAnswersBounds = {1, 2, 5, 10, 20};

std::string escaped_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// Writes families one by one, all under the same labels.
class Page {
 public:
  Page(std::string& out, std::string labels) : out_(out), labels_(std::move(labels)) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  template <class T>
  void sample(std::string_view name, T value, std::string_view more = {}) {
    fmt::format_to(std::back_inserter(out_), "{}{{{}{}}} {}\n", name, labels_, more, value);
  }
  template <class T>
  void gauge(std::string_view name, std::string_view help, T value) {
    family(name, "gauge", help);
    sample(name, value);
  }
  template <class T>
  void counter(std::string_view name, std::string_view help, T value) {
    family(name, "counter", help);
    sample(name, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    family(name, "histogram", help);
    histogram.append(out_, name, labels_);
  }

 private:
  std::string& out_;
  std::string labels_;
};

void add_groups(Page& page, const EngineStats& stats) {
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help, auto member) {
    page.family(name, type, help);
    for (size_t g = 0; g < stats.cache_groups.size(); ++g) {
      const CacheGroupStats& group = stats.cache_groups[g];
      page.sample(name, group.*member, fmt::format(",group=\"{}\",kind=\"{}\"", g, group.kind));
    }
  };
  family("quire:kv_cache_group_held_blocks", "gauge", "Blocks that requests hold, by KV cache group.",
         &CacheGroupStats::held_blocks);
  family("quire:kv_cache_group_retained_blocks", "gauge", "Blocks kept for the prefix cache that no request holds.",
         &CacheGroupStats::retained_blocks);
  family("quire:kv_cache_group_evictions_total", "counter", "Blocks whose cached prefix gave way to other blocks.",
         &CacheGroupStats::evictions);
  family("quire:kv_cache_group_hit_tokens_total", "counter", "Tokens in blocks taken over from the prefix cache.",
         &CacheGroupStats::hit_tokens);
}

void add_engine(Page& page, const ModelInfo& info, const EngineStats& stats) {
  page.gauge("vllm:num_requests_running", "Requests in the running batch.", stats.running);
  page.gauge("vllm:num_requests_waiting", "Requests waiting to be run.", stats.waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Part of the KV cache's blocks in use, 1 is all.", stats.kv_cache_usage);
  page.family("vllm:cache_config_info", "gauge", "How the KV cache was made.");
  page.sample("vllm:cache_config_info", 1,
              fmt::format(",block_size=\"{}\",num_gpu_blocks=\"{}\",kv_cache_memory_bytes=\"{}\"", info.block_size,
                          info.num_gpu_blocks, info.kv_cache_bytes));
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               stats.prefix_cache_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits);
  page.counter("vllm:num_preemptions_total", "Requests put back to make room for others.", stats.preemptions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens taken in.", stats.prompt_tokens);
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens that the prefix cache spared.",
               stats.prompt_tokens_cached);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
  page.gauge("quire:kv_cache_free_blocks", "Blocks of the KV cache that no request holds.", stats.free_blocks);
  page.gauge("quire:kv_cache_total_blocks", "Blocks of the KV cache that requests can hold.", stats.total_blocks);
  page.histogram(
      "vllm:iteration_tokens_total", "Tokens computed in a step, of prompts and answers.",
      Histogram({kStepTokenBounds.begin(), kStepTokenBounds.end()},
                {stats.steps_by_tokens.begin(), stats.steps_by_tokens.end()}, static_cast<double>(stats.step_tokens)));
  add_groups(page, stats);
  page.counter("quire:engine_steps_total", "Steps run.", stats.steps);
  page.counter("quire:engine_step_seconds_total", "Time spent in steps.", stats.step_seconds);
  page.counter("quire:engine_overhead_seconds_total", "Time spent in steps outside of forward pass and sampling.",
               stats.overhead_seconds);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds, std::vector<uint64_t> counts, double sum)
    : bounds_(std::move(bounds)), counts_(std::move(counts)), sum_(sum) {
  QUIRE_CHECK(counts_.size() == bounds_.size() + 1);
  for (const uint64_t count : counts_) count_ += count;
}

void Histogram::observe(double value) {
  const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
  ++count_;
}

void Histogram::append(std::string& out, std::string_view name, std::string_view labels) const {
  uint64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
  }
  fmt::format_to(std::back_inserter(out),
                 "{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3}\n{0}_count{{{1}}} {2}\n", name, labels, count_,
                 sum_);
}

std::vector<double> one_two_five(int64_t most) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= most; power *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (step * power <= most) bounds.push_back(static_cast<double>(step * power));
    }
  }
  return bounds;
}

Metrics::Metrics(int64_t max_model_len)
    : time_to_first_token_(kFirstTokenBounds),
      inter_token_(kTokenBounds),
      time_per_output_token_(kTokenBounds),
      latency_(kLatencyBounds),
      queue_time_(kLatencyBounds),
      prefill_time_(kLatencyBounds),
      decode_time_(kLatencyBounds),
      inference_time_(kLatencyBounds),
      prompt_tokens_(one_two_five(max_model_len)),
      generation_tokens_(one_two_five(max_model_len)),
      params_n_(kAnswersBounds),
      params_max_tokens_(one_two_five(max_model_len)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) finished_[reason] = 0;
}

void Metrics::finished(const FinishedAnswer& answer) {
  ++finished_[std::string(answer.reason)];
  latency_.observe(answer.seconds);
  prompt_tokens_.observe(static_cast<double>(answer.prompt_tokens));
  generation_tokens_.observe(static_cast<double>(answer.generation_tokens));
  if (answer.max_tokens > 0) params_max_tokens_.observe(static_cast<double>(answer.max_tokens));
  if (!answer.times) return;
  queue_time_.observe(answer.times->queue);
  prefill_time_.observe(answer.times->prefill);
  decode_time_.observe(answer.times->decode);
  inference_time_.observe(answer.times->inference());
  if (answer.generation_tokens > 1) {
    time_per_output_token_.observe(answer.times->decode / static_cast<double>(answer.generation_tokens - 1));
  }
}

std::string Metrics::text(const std::string& model_name, const ModelInfo& info, const EngineStats& stats) const {
  std::string out;
  Page page(out, fmt::format("model_name=\"{}\",engine=\"0\"", escaped_label(model_name)));
  add_engine(page, info, stats);
  page.family("vllm:request_success_total", "counter", "Answers that ended, by reason.");
  for (const auto& [reason, count] : finished_) {
    page.sample("vllm:request_success_total", count, fmt::format(",finished_reason=\"{}\"", reason));
  }
  page.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
                 time_to_first_token_);
  page.histogram("vllm:inter_token_latency_seconds", "Between one update of an answer and the next.", inter_token_);
  page.histogram("vllm:request_time_per_output_token_seconds", "Decode time over tokens, by answer.",
                 time_per_output_token_);
  page.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to the end of an answer.", latency_);
  page.histogram("vllm:request_queue_time_seconds", "From arrival in the engine to the first step.", queue_time_);
  page.histogram("vllm:request_prefill_time_seconds", "From an answer's first step to its first token.", prefill_time_);
  page.histogram("vllm:request_decode_time_seconds", "From an answer's first token to its last.", decode_time_);
  page.histogram("vllm:request_inference_time_seconds", "From an answer's first step to its last token.",
                 inference_time_);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens, by answer.", prompt_tokens_);
  page.histogram("vllm:request_generation_tokens", "Generated tokens, by answer.", generation_tokens_);
  page.histogram("vllm:request_params_n", "Answers wanted, by prompt.", params_n_);
  page.histogram("vllm:request_params_max_tokens", "Tokens that an answer could have, by answer.", params_max_tokens_);
  page.family("quire:completion_replies_total", "counter",
              "Replies to requests for completions, by status; 499: the client left.");
  for (const auto& [status, count] : replies_) {
    page.sample("quire:completion_replies_total", count, fmt::format(",status=\"{}\"", status));
  }
  return out;
}

}  // namespace quire::api
