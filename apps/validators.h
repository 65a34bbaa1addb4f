// Checks of flags' values, with messages that say what would be right.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire::apps {

// A whole number in plain decimal: CLI11 by itself would take 010 for 8.
std::optional<int64_t> plain_integer(std::string_view text);
// A number that is one, or infinite: comparisons alone would let nan pass.
std::optional<double> plain_number(std::string_view text);

CLI::Validator integer(int64_t low, int64_t high);
CLI::Validator number(double low, double high);
CLI::Validator not_empty();

}  // namespace quire::apps
