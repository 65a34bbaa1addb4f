// Small files that a user names: read whole, and never more than a bound.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "quire/error.h"

namespace quire::apps {

// kNotFound or kInvalidRequest, with the path in the message, if it is no regular file, empty, or longer.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace quire::apps
