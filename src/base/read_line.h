// The first line of a small file, such as the kernel's in /sys; empty where there is none.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace quire {

inline std::string read_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace quire
