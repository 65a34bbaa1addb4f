#include "api/http.h"

#include <algorithm>

namespace quire::api {

std::string header_list(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 32;
  constexpr size_t kLongestName = 64;
  std::string list;
  size_t count = 0;
  for (const std::string& name : names) {
    const bool plain = std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
             c == '.';
    });
    if (!plain || name.empty() || name.size() > kLongestName || ++count > kMostNames) continue;
    if (!list.empty()) list += ", ";
    list += name;
  }
  return list;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace quire::api
