// A file of flags as arguments of a command line. The command line itself goes before it.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/error.h"

namespace quire::apps {

// `command` has been parsed: what it was given there is left out. kInvalidRequest with path and line for a name that is
// none of its flags, a list where one value belongs, and a switch that is neither true nor false.
Result<std::vector<std::string>> config_args(const CLI::App& command, const std::filesystem::path& path);

}  // namespace quire::apps
