#include "load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

namespace quire::apps {
namespace {

constexpr double kMsPerSecond = 1000;

// Linear between the two nearest ranks, as numpy has it. `sorted` is not empty.
double percentile(const std::vector<double>& sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// mean_NAME_ms and so on; all null where there is nothing to measure.
void add_times(nlohmann::json& figures, const std::string& name, std::vector<double> seconds) {
  nlohmann::json mean, median, deviation, p99;
  if (!seconds.empty()) {
    std::ranges::sort(seconds);
    const auto count = static_cast<double>(seconds.size());
    const double average = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
    double squares = 0;
    for (const double value : seconds) squares += (value - average) * (value - average);
    mean = kMsPerSecond * average;
    median = kMsPerSecond * percentile(seconds, 50);
    deviation = kMsPerSecond * std::sqrt(squares / count);
    p99 = kMsPerSecond * percentile(seconds, 99);
  }
  figures["mean_" + name + "_ms"] = mean;
  figures["median_" + name + "_ms"] = median;
  figures["std_" + name + "_ms"] = deviation;
  figures["p99_" + name + "_ms"] = p99;
}

// Time per output token after the first; 0 for answers of one token.
double tpot(const Sample& sample) {
  if (sample.output_tokens <= 1) return 0;
  return (sample.latency - sample.ttft) / static_cast<double>(sample.output_tokens - 1);
}

bool meets(const Sample& sample, const std::map<std::string, double>& goals) {
  return std::ranges::all_of(goals, [&](const auto& goal) {
    const double seconds = goal.first == "ttft" ? sample.ttft : goal.first == "tpot" ? tpot(sample) : sample.latency;
    return seconds * kMsPerSecond <= goal.second;
  });
}

}  // namespace

nlohmann::json load_figures(const std::vector<Sample>& samples, double duration,
                            const std::map<std::string, double>& goals) {
  std::vector<double> ttfts, tpots, itls, latencies;
  int64_t input = 0, cached = 0, output = 0;
  int good = 0;
  std::map<std::string, int> errors;
  for (const Sample& sample : samples) {
    if (!sample.error.empty()) {
      ++errors[sample.error];
      continue;
    }
    ttfts.push_back(sample.ttft);
    if (sample.output_tokens > 1) tpots.push_back(tpot(sample));
    itls.insert(itls.end(), sample.itl.begin(), sample.itl.end());
    latencies.push_back(sample.latency);
    input += sample.input_tokens;
    cached += sample.cached_tokens;
    output += sample.output_tokens;
    good += meets(sample, goals) ? 1 : 0;
  }
  const size_t completed = latencies.size();
  const auto per_second = [&](auto count) { return static_cast<double>(count) / duration; };
  nlohmann::json figures = {{"duration", duration},
                            {"completed", completed},
                            {"failed", samples.size() - completed},
                            {"total_input_tokens", input},
                            {"total_cached_tokens", cached},
                            {"total_output_tokens", output},
                            {"request_throughput", per_second(completed)},
                            {"request_goodput", nullptr},
                            {"output_throughput", per_second(output)},
                            {"total_token_throughput", per_second(input + output)},
                            {"failures", errors}};
  if (!goals.empty()) figures["request_goodput"] = per_second(good);
  add_times(figures, "ttft", std::move(ttfts));
  add_times(figures, "tpot", std::move(tpots));
  add_times(figures, "itl", std::move(itls));
  add_times(figures, "e2el", std::move(latencies));
  return figures;
}

nlohmann::json load_details(const std::vector<Sample>& samples) {
  nlohmann::json details;
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"})
    details[name] = nlohmann::json::array();
  for (const Sample& sample : samples) {
    details["input_lens"].push_back(sample.input_tokens);
    details["output_lens"].push_back(sample.output_tokens);
    details["ttfts"].push_back(sample.ttft);
    details["itls"].push_back(sample.itl);
    details["latencies"].push_back(sample.latency);
    details["start_times"].push_back(sample.start);
    details["errors"].push_back(sample.error);
  }
  return details;
}

std::string load_table(const nlohmann::json& figures) {
  constexpr std::pair<const char*, const char*> kLines[] = {
      {"completed", "requests answered"},
      {"failed", "requests failed"},
      {"duration", "duration, s"},
      {"total_input_tokens", "input tokens"},
      {"total_cached_tokens", "of them cached"},
      {"total_output_tokens", "output tokens"},
      {"request_throughput", "requests/s"},
      {"request_goodput", "requests/s that met the goals"},
      {"output_throughput", "output tokens/s"},
      {"total_token_throughput", "input and output tokens/s"},
  };
  std::string table;
  const auto out = std::back_inserter(table);
  for (const auto& [name, label] : kLines) {
    const nlohmann::json& value = figures.at(name);
    if (value.is_null()) continue;
    fmt::format_to(out, "{:<30} {:>12}\n", label,
                   value.is_number_float() ? fmt::format("{:.2f}", value.get<double>()) : value.dump());
  }
  fmt::format_to(out, "\n{:<30} {:>12} {:>12} {:>12}\n", "ms", "mean", "p50", "p99");
  for (const auto& [name, label] :
       {std::pair{"ttft", "TTFT, time to first token"}, std::pair{"tpot", "TPOT, time per output token"},
        std::pair{"itl", "ITL, between two pieces"}, std::pair{"e2el", "E2EL, end to end"}}) {
    fmt::format_to(out, "{:<30}", label);
    for (const char* statistic : {"mean", "median", "p99"}) {
      const nlohmann::json& value = figures.at(fmt::format("{}_{}_ms", statistic, name));
      fmt::format_to(out, " {:>12}", value.is_null() ? "-" : fmt::format("{:.2f}", value.get<double>()));
    }
    table += '\n';
  }
  for (const auto& [error, count] : figures.at("failures").items())
    fmt::format_to(out, "\n{} failed: {}", count.get<int>(), error);
  if (!figures.at("failures").empty()) table += '\n';
  return table;
}

}  // namespace quire::apps
