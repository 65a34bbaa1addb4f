// One line a message on standard error: time, level, text. The level comes from QUIRE_LOG (debug, info, warn, error).
#pragma once

#include <string_view>

namespace quire::log {

void debug(std::string_view message);
void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

// From now on messages below warn are left out, unless QUIRE_LOG asks for them.
void leave_out_info();

}  // namespace quire::log
