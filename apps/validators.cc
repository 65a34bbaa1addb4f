#include "validators.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>

namespace quire::apps {

std::optional<int64_t> plain_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text != std::to_string(value)) return std::nullopt;
  return value;
}

std::optional<double> plain_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || std::isnan(value)) return std::nullopt;
  return value;
}

CLI::Validator integer(int64_t low, int64_t high) {
  const auto check = [low, high](const std::string& text) {
    const auto value = plain_integer(text);
    if (value && *value >= low && *value <= high) return std::string();
    return fmt::format("must be an integer from {} to {}, not '{}'", low, high, text);
  };
  return {check, ""};
}

CLI::Validator number(double low, double high) {
  const auto check = [low, high](const std::string& text) {
    const auto value = plain_number(text);
    if (value && *value >= low && *value <= high) return std::string();
    return fmt::format("must be a number from {} to {}, not '{}'", low, high, text);
  };
  return {check, ""};
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); }, ""};
}

}  // namespace quire::apps
