#include "profile_report.h"

#include <fmt/format.h>

#include <vector>

namespace quire::apps {
namespace {

using exec::Operator;
using kernels::MachinePeaks;

// Of one step.
struct Line {
  std::string name;
  double seconds = 0;
  double share = 0;  // of the step
  double bytes = 0;
  double operations = 0;
  kernels::Roof roof = {};
};

std::vector<Line> lines_of(const exec::StepProfile& profile, const MachinePeaks& peaks) {
  std::vector<Line> lines;
  const double steps = static_cast<double>(profile.steps());
  Line all{.name = "step"};
  for (size_t i = 0; i < exec::kOperators; ++i) {
    const auto op = static_cast<Operator>(i);
    const auto& [seconds, work] = profile.of(op);
    if (seconds <= 0) continue;
    lines.push_back({.name = std::string(name_of(op)),
                     .seconds = seconds / steps,
                     .share = seconds / profile.seconds(),
                     .bytes = work.all_bytes() / steps,
                     .operations = work.all_operations() / steps,
                     .roof = roof_of(work, peaks)});
    lines.back().roof.seconds /= steps;
    const Line& line = lines.back();
    all.seconds += line.seconds;
    all.share += line.share;
    all.bytes += line.bytes;
    all.operations += line.operations;
    all.roof.seconds += line.roof.seconds;
  }
  lines.push_back(all);
  return lines;
}

}  // namespace

std::string profile_table(const exec::StepProfile& profile, const MachinePeaks& peaks) {
  std::string text = fmt::format("{:>14}peaks: {}; steps: {}\n", "", describe(peaks), profile.steps());
  text += fmt::format("{:>14}{:<22}{:>9}{:>8}{:>10}{:>10}{:>8}{:>8}{:>10}\n", "", "", "ms", "share", "MB", "Mop",
                      "GB/s", "Gop/s", "roofline");
  for (const Line& line : lines_of(profile, peaks)) {
    text += fmt::format("{:>14}{:<22}{:>9.3f}{:>6.1f} %{:>10.2f}{:>10.1f}", "", line.name, 1e3 * line.seconds,
                        100 * line.share, line.bytes / 1e6, line.operations / 1e6);
    if (line.roof.seconds > 0)
      text += fmt::format("{:>8.1f}{:>8.0f}{:>8.0f} %{}", line.bytes / line.seconds / 1e9,
                          line.operations / line.seconds / 1e9, 100 * line.roof.seconds / line.seconds,
                          line.name == "step" ? "" : fmt::format(" of {}", name_of(line.roof.bound)));
    text += "\n";
  }
  return text;
}

nlohmann::json profile_json(const exec::StepProfile& profile, const MachinePeaks& peaks) {
  nlohmann::json units = nlohmann::json::object(), operators = nlohmann::json::array(), step;
  for (size_t u = 0; u < kernels::kUnits; ++u)
    if (peaks.operations[u] > 0) units[std::string(name_of(static_cast<kernels::Unit>(u)))] = peaks.operations[u] / 1e9;
  for (const Line& line : lines_of(profile, peaks)) {
    nlohmann::json entry = {{"name", line.name},
                            {"ms", 1e3 * line.seconds},
                            {"share", line.share},
                            {"bytes", line.bytes},
                            {"operations", line.operations},
                            {"gb_s", line.bytes / line.seconds / 1e9},
                            {"gop_s", line.operations / line.seconds / 1e9},
                            {"roofline_share", line.roof.seconds / line.seconds}};
    if (line.name == "step") {
      step = std::move(entry);
      continue;
    }
    if (line.roof.seconds > 0) entry["bound"] = name_of(line.roof.bound);
    operators.push_back(std::move(entry));
  }
  return {{"steps", profile.steps()},
          {"peaks", {{"memory_gb_s", peaks.bytes / 1e9}, {"cache_gb_s", peaks.cached_bytes / 1e9}, {"gop_s", units}}},
          {"operators", operators},
          {"step", step}};
}

}  // namespace quire::apps
