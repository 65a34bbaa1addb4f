#include "config_args.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "config_file.h"

namespace quire::apps {
namespace {

constexpr std::string_view kNo = "no-";

const CLI::Option* option_of(const CLI::App& command, std::string_view name) {
  if (name == "config" || name == "help") return nullptr;
  return command.get_option_no_throw(fmt::format("--{}", name));
}

// The switch that says the opposite.
const CLI::Option* opposite_of(const CLI::App& command, const std::string& name) {
  return option_of(command, name.starts_with(kNo) ? name.substr(kNo.size()) : std::string(kNo) + name);
}

bool is_given(const CLI::Option* option) { return option != nullptr && option->count() > 0; }

}  // namespace

Result<std::vector<std::string>> config_args(const CLI::App& command, const std::filesystem::path& path) {
  auto entries = read_config(path);
  if (!entries) return std::unexpected(entries.error());
  std::vector<std::string> args;
  for (const ConfigEntry& entry : *entries) {
    const auto wrong = [&](std::string_view what) {
      return fail(ErrorKind::kInvalidRequest,
                  fmt::format("--config: {}, line {}: {} {}", path.string(), entry.line, in_quotes(entry.name), what),
                  "--config");
    };
    const CLI::Option* option = option_of(command, entry.name);
    if (option == nullptr) return wrong(fmt::format("is no flag of quire {}", command.get_name()));
    const CLI::Option* opposite = opposite_of(command, entry.name);
    const bool is_switch = option->get_expected_max() == 0;
    if (entry.values.size() > 1 && option->get_expected_max() <= 1) return wrong("takes one value, not a list");
    const std::string& value = entry.values.front();
    if (is_switch && value != "true" && value != "false")
      return wrong(fmt::format("must be true or false, not {}", in_quotes(value)));
    if (is_given(option) || is_given(opposite)) continue;
    if (!is_switch) {
      for (const std::string& one : entry.values) args.push_back(fmt::format("--{}={}", entry.name, one));
    } else if (value == "true") {
      args.push_back(fmt::format("--{}", entry.name));
    } else if (opposite != nullptr) {
      args.push_back(fmt::format("--{}", opposite->get_lnames().front()));
    }
  }
  return args;
}

}  // namespace quire::apps
