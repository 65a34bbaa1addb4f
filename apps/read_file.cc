#include "read_file.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>
#include <system_error>

namespace quire::apps {

Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes) {
  const auto wrong = [&](ErrorKind kind, std::string_view what) {
    return fail(kind, fmt::format("{} {}", path.string(), what));
  };
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status)) return wrong(ErrorKind::kNotFound, "is no file");
  if (!std::filesystem::is_regular_file(status)) return wrong(ErrorKind::kInvalidRequest, "is not a regular file");
  std::ifstream in(path, std::ios::binary);
  std::string text(max_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.eof() && !in) return wrong(ErrorKind::kInvalidRequest, "cannot be read");
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > max_bytes)
    return wrong(ErrorKind::kInvalidRequest, fmt::format("has more than {} bytes", max_bytes));
  if (text.empty()) return wrong(ErrorKind::kInvalidRequest, "is empty");
  return text;
}

}  // namespace quire::apps
