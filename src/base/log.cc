#include "base/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/overloaded.h"

namespace quire::log {
namespace {

constexpr const char* kTextPattern = "%Y-%m-%d %H:%M:%S.%e %l %v";

std::atomic<Format> format_of_lines = Format::kText;

spdlog::logger make_logger() {
  spdlog::logger logger("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger.set_pattern(kTextPattern);
  const char* level = std::getenv("QUIRE_LOG");
  // An unknown name would switch everything off.
  const auto parsed = level == nullptr ? spdlog::level::info : spdlog::level::from_str(level);
  const bool unknown = parsed == spdlog::level::off && std::string_view(level) != "off";
  logger.set_level(unknown ? spdlog::level::info : parsed);
  return logger;
}

spdlog::logger& logger() {
  static spdlog::logger instance = make_logger();
  return instance;
}

std::string text_line(std::string_view message, std::span<const Field> fields) {
  std::string line(message);
  for (const auto& [name, value] : fields) {
    line += fmt::format(" {}=", name);
    std::visit(Overloaded{[&](double number) { line += fmt::format("{:.1f}", number); },
                          [&](const auto& other) { line += fmt::format("{}", other); }},
               value);
  }
  return line;
}

std::string json_line(spdlog::level::level_enum level, std::string_view message, std::span<const Field> fields) {
  const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto milliseconds = now.time_since_epoch().count() % 1000;
  const auto level_name = spdlog::level::to_string_view(level);
  nlohmann::ordered_json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                           milliseconds)},
      {"level", std::string_view(level_name.data(), level_name.size())},
      {"message", message}};
  for (const auto& [name, value] : fields)
    std::visit([&](const auto& plain) { line[std::string(name)] = plain; }, value);
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write(spdlog::level::level_enum level, std::string_view message, std::span<const Field> fields = {}) {
  if (!logger().should_log(level)) return;
  logger().log(level, "{}",
               format_of_lines == Format::kJson ? json_line(level, message, fields) : text_line(message, fields));
}

}  // namespace

void leave_out_info() {
  if (std::getenv("QUIRE_LOG") == nullptr) logger().set_level(spdlog::level::warn);
}

void set_format(Format format) {
  format_of_lines = format;
  logger().set_pattern(format == Format::kJson ? "%v" : kTextPattern);
}

void debug(std::string_view message) { write(spdlog::level::debug, message); }
void info(std::string_view message) { write(spdlog::level::info, message); }
void info(std::string_view message, std::span<const Field> fields) { write(spdlog::level::info, message, fields); }
void warn(std::string_view message) { write(spdlog::level::warn, message); }
void error(std::string_view message) { write(spdlog::level::err, message); }

}  // namespace quire::log
