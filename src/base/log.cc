#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

namespace quire::log {
namespace {

spdlog::logger make_logger() {
  spdlog::logger logger("quire", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger.set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
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

void write(spdlog::level::level_enum level, std::string_view message) { logger().log(level, "{}", message); }

}  // namespace

void leave_out_info() {
  if (std::getenv("QUIRE_LOG") == nullptr) logger().set_level(spdlog::level::warn);
}

void debug(std::string_view message) { write(spdlog::level::debug, message); }
void info(std::string_view message) { write(spdlog::level::info, message); }
void warn(std::string_view message) { write(spdlog::level::warn, message); }
void error(std::string_view message) { write(spdlog::level::err, message); }

}  // namespace quire::log
